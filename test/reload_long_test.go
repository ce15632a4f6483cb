// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

const (
	reloadTimes   = 500
	reloadStreams = 50
)
