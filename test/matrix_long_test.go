// SPDX-License-Identifier: Apache-2.0

//go:build long

package test

import "testing"

// TestMatrixLarge: 100 MiB each way, whatever clients and backends speak.
func TestMatrixLarge(t *testing.T) {
	m := startMatrix(t)
	for _, front := range matrixFronts {
		for _, back := range matrixBacks {
			t.Run(front+" to "+back, func(t *testing.T) {
				client, url := m.client(t, front, back)
				c := cell{m, client, url, front, back}
				c.sizes(t, []int{100 << 20})
			})
		}
	}
}
