// SPDX-License-Identifier: Apache-2.0

// Package handover lets one process take over the listening sockets of
// another, for an upgrade of the binary without a refused connection. It knows
// processes and a pair of sockets between them, and nothing of what they serve.
//
// The predecessor starts the successor with Start and then asks for each step;
// the successor finds the predecessor with Join and says each step:
//
//	predecessor                                   successor
//	Start: process, hello with the sockets   ──▶  Join
//	                                              reads its configuration, builds all
//	Built                                    ◀──  Built, or Fail
//	refuses changes
//	Ready: state                             ──▶  (Built returns it)
//	                                              restores, begins to accept
//	                                         ◀──  Ready, or Fail
//	stops accepting, drains
//	Report                                   ──▶  Follow
//	Words                                    ◀──  Say
//	exits                                         the end of Follow
//
// Until Ready the predecessor serves, whatever becomes of the successor: it
// may exit, hang, say that it failed, or be another program altogether. A
// successor that is given up is killed before the step returns. When it is the
// predecessor that dies before, the successor takes over without its state:
// it holds the sockets, so that no connection is refused.
//
// Messages are JSON with a length before it, on a stream socket; sockets travel
// with them as SCM_RIGHTS (unix(7)). Either side may be the newer one: fields
// and kinds that it does not know are passed over, and both say the oldest
// protocol that they still speak.
package handover
