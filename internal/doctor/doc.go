// SPDX-License-Identifier: Apache-2.0

// Package doctor looks at the machine that weir runs on, or will run on, and
// holds it against a configuration: what the kernel, the limits of the process
// and its control group do not give, although the configuration counts on it.
//
// Look gathers Facts; Examine is a pure function of them and a Plan. Nothing is
// changed and nothing running is asked.
package doctor
