// SPDX-License-Identifier: Apache-2.0

//go:build !long

package test

import "time"

// rollingSpread is over what time the WebSockets of a backend are closed.
const rollingSpread = 1200 * time.Millisecond

// eventsWithin is how long an event may take from backend to client.
const eventsWithin = 50 * time.Millisecond
