// SPDX-License-Identifier: Apache-2.0

// Package message holds the neutral form of a request and a response head that
// every codec speaks. A codec parses into it, the exchange edits it, another
// codec writes it out again.
//
// Text is borrowed from the codec's read buffer and addressed by offset, so a
// parsed head costs no copies; what the exchange adds lives in a buffer of its
// own. A head is valid until the codec that filled it reads the next one.
package message
