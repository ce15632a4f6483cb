// SPDX-License-Identifier: Apache-2.0

package balance

// Priority is how much a request matters when not all can be served. It is no
// backend's priority, which is its tier. The zero value is NormalPriority.
type Priority uint8

// The priorities.
const (
	NormalPriority Priority = iota
	LowPriority             // refused first
	HighPriority            // refused last

	Priorities // how many there are
)

var priorityNames = [Priorities]string{"normal", "low", "high"}

// String returns the word of the configuration.
func (p Priority) String() string {
	if p < Priorities {
		return priorityNames[p]
	}
	return "unknown"
}

// ParsePriority returns the priority of a word: low, normal or high, as written
// here. ok is false for any other.
func ParsePriority(word string) (p Priority, ok bool) {
	for i, name := range priorityNames {
		if name == word {
			return Priority(i), true
		}
	}
	return NormalPriority, false
}
