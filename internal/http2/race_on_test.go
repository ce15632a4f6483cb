// SPDX-License-Identifier: Apache-2.0

//go:build race

package http2

const raceEnabled = true
