// SPDX-License-Identifier: Apache-2.0

// Package weir is the root of a load balancer: the binary is in cmd/weir, the
// importable balancing core in balance, health and pool. docs/architecture.md
// shows the way of a request through the folders.
package weir
