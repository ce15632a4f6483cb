// SPDX-License-Identifier: Apache-2.0

package message

import "testing"

func TestEveryReasonHasAMeaning(t *testing.T) {
	for r := range Reasons {
		if what, look := r.Meaning(); what == "" || look == "" {
			t.Errorf("%s has none", r)
		}
	}
}
