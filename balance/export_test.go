// SPDX-License-Identifier: Apache-2.0

package balance

// MaglevTable returns whose each slot of the default table is, for tests.
func MaglevTable(members []Member) []*Backend {
	m := NewMaglev(HashConfig{}).Build(NewSet(members, 1, false)).(*maglev)
	list := make([]*Backend, len(m.table))
	for slot, i := range m.table {
		list[slot] = m.slots[i].backend
	}
	return list
}
