// SPDX-License-Identifier: Apache-2.0

// Package systemd is how weir speaks with a service manager: what it gets at
// its start (listening sockets, the watchdog's interval) and what it says while
// it runs (sd_notify(3)). Where there is no manager everything in it is empty
// and silent. It knows nothing of the balancer.
package systemd
