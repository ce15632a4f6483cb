// SPDX-License-Identifier: Apache-2.0

package balance_test

import (
	"fmt"

	"github.com/weirlb/weir/balance"
)

// A pool of two, the second of which drains. Whoever picks also reserves, and
// picks again, with the backend in Tried, when the reservation is refused.
func Example() {
	a, b := balance.NewBackend("a:80", "http://a:80"), balance.NewBackend("b:80", "http://b:80")
	set := balance.NewSet([]balance.Member{{Backend: a, Weight: 5}, {Backend: b, Weight: 1}}, 1, false)
	picker := balance.NewP2C(2).Build(set)
	a.SetLimit(1)
	b.SetAdmin(balance.Draining)

	var held []*balance.Backend
	for request := range uint64(2) {
		r := balance.Request{Rand: 0x9e3779b97f4a7c15 * (request + 1)}
		got, ok := picker.Pick(r)
		switch {
		case !ok:
			fmt.Println("nobody may take work")
		case got.Reserve():
			fmt.Println("sent to", got.ID())
			held = append(held, got)
		default:
			fmt.Println(got.ID(), "is full, and so is everyone else")
		}
	}
	for _, backend := range held {
		backend.Release()
	}
	fmt.Println("in flight:", a.InFlight()+b.InFlight())
	// Output:
	// sent to a:80
	// a:80 is full, and so is everyone else
	// in flight: 0
}
