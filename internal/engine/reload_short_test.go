// SPDX-License-Identifier: Apache-2.0

//go:build !long

package engine

// The size of TestReloadUnderLoad; the one of `make long` is in reload_long_test.go.
const (
	reloadTimes   = 50
	reloadStreams = 10
	// of TestManyListenersComeAndGo
	reloadListeners = 50
)
