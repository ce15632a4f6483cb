// SPDX-License-Identifier: Apache-2.0

// Package logline knows the form of an access log's line as an operator writes
// it: text with $names in it, as nginx's log_format and HAProxy's log-format
// have it. It turns that text into pieces and decides which bytes of a value
// have to be escaped where; package observe fills in the values.
//
// Inside braces, a name may touch what follows: ${name}. Two dollars stand for
// one.
//
// # What a client cannot do
//
// A value can neither end its line nor pretend to be the one behind it. Each
// byte below 0x20 or above 0x7e, each double quote and each backslash becomes
// \xXX with two upper-case hexadecimal digits, which is what nginx writes. So
// does, outside of double quotes, a space and every byte that the text behind a
// value begins with: in "$path|$user_agent" neither can contain a bar. Between
// double quotes a value is ended by the quote alone, unless several share them:
// then what follows each but the last is escaped there, too. What is left is a
// format that puts two values side by side, or a letter or digit between them.
package logline
