// SPDX-License-Identifier: Apache-2.0

// Package admin is the operator's way in: a JSON API, metrics and a live page
// on the admin address, and a read-only status address for orchestrators and
// balancers in front.
//
// It declares the small interface it needs (Controller) and never learns who
// implements it. It also holds the client of the same API that the commands
// use, so that both ends of the contract are in one place.
//
// The admin address can drain backends, so it is guarded even on loopback:
// against other sites in the operator's browser (Host, Origin, Sec-Fetch-Site
// and Content-Type are checked, nothing allows cross-origin reads) and, where
// a token file is given, against everybody without the token.
package admin
