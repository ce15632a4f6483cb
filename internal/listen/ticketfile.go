// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/weirlb/weir/internal/inputfile"
)

// A file of ticket keys has one key in a line, in base64, of 32 bytes or more:
// what `openssl rand -base64 48` prints. Empty lines, and those that begin with
// "#", are left out. The first key makes tickets, all open them. To rotate
// without losing a session, put a new key into the second line everywhere, then
// move it to the first one everywhere, and drop the last.
const (
	maxTicketFile = 64 << 10
	maxTicketKeys = 16 // each ticket that no key opens is tried with all
	minTicketKey  = 32
)

// ParseTicketKeys reads the text of a file of ticket keys. The errors name lines
// and never hold what is in them.
func ParseTicketKeys(text []byte) (keys [][]byte, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if err != nil {
			return nil, fmt.Errorf("line %d is not base64", n)
		}
		if len(key) < minTicketKey {
			return nil, fmt.Errorf("the key in line %d has %d bytes, and needs %d: openssl rand -base64 48", n, len(key), minTicketKey)
		}
		for i := range keys {
			if bytes.Equal(keys[i], key) {
				return nil, fmt.Errorf("line %d repeats a key", n)
			}
		}
		if keys = append(keys, key); len(keys) > maxTicketKeys {
			return nil, fmt.Errorf("more than %d keys", maxTicketKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it holds no key: openssl rand -base64 48")
	}
	return keys, nil
}

// loadTicketKeys reads a file; without a name there are none.
func loadTicketKeys(file string) ([][32]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := inputfile.Read(file, maxTicketFile)
	if err != nil {
		return nil, fmt.Errorf("tls: ticket_keys_file: %w", err)
	}
	keys, err := ParseTicketKeys(text)
	if err != nil {
		return nil, fmt.Errorf("tls: ticket_keys_file: %s: %w", file, err)
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
