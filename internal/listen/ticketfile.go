// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/weirlb/weir/internal/inputfile"
)

// loadTicketKeys reads a file of ticket keys (see inputfile.Keys); without a name
// there are none. The first makes tickets, all open them, and each ticket that no
// key opens is tried with all. To rotate without losing a session, put a new key
// into the second line everywhere, then move it to the first one everywhere, and
// drop the last.
func loadTicketKeys(file string) ([][32]byte, error) {
	if file == "" {
		return nil, nil
	}
	keys, err := inputfile.Keys(file)
	if err != nil {
		return nil, fmt.Errorf("tls: ticket_keys_file: %w", err)
	}
	out := make([][32]byte, len(keys))
	for i, k := range keys {
		out[i] = sha256.Sum256(k)
	}
	return out, nil
}

// derive makes a listener's own keys of those of a file, by HMAC (RFC 2104) over
// its name: two listeners that share a file do not open each other's tickets, and
// the listeners of one name of several weirs do.
func derive(keys [][32]byte, listener string) [][32]byte {
	out := make([][32]byte, len(keys))
	for i := range keys {
		h := hmac.New(sha256.New, keys[i][:])
		_, _ = h.Write([]byte("weir session tickets of listener " + listener)) // no hash fails
		h.Sum(out[i][:0])
	}
	return out
}

// CheckTicketKeys reads a file of ticket keys and says what is wrong with it; no
// name is no mistake.
func CheckTicketKeys(file string) error {
	_, err := loadTicketKeys(file)
	return err
}
