// SPDX-License-Identifier: Apache-2.0

//go:build long

package engine

// The size of TestReloadUnderLoad.
const (
	reloadTimes   = 500
	reloadStreams = 50
	// of TestManyListenersComeAndGo
	reloadListeners = 500
)
