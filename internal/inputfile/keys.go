// SPDX-License-Identifier: Apache-2.0

package inputfile

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
)

// A file of keys has one in a line, in base64, of 32 bytes or more: what
// `openssl rand -base64 48` prints. Empty lines, and those that begin with "#",
// are left out. The first key is the one that makes things, all recognise them.
const (
	mostKeyFile = 64 << 10
	mostKeys    = 16
	leastKey    = 32
)

// Keys reads a file of keys. The errors name lines and never hold what is in them.
func Keys(path string) ([][]byte, error) {
	text, err := Read(path, mostKeyFile)
	if err != nil {
		return nil, err
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// ParseKeys reads the text of a file of keys, at least one, as Keys does.
func ParseKeys(text []byte) (keys [][]byte, err error) {
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
		if len(key) < leastKey {
			return nil, fmt.Errorf("the key in line %d has %d bytes, and needs %d: openssl rand -base64 48", n, len(key), leastKey)
		}
		for i := range keys {
			if bytes.Equal(keys[i], key) {
				return nil, fmt.Errorf("line %d repeats a key", n)
			}
		}
		if keys = append(keys, key); len(keys) > mostKeys {
			return nil, fmt.Errorf("more than %d keys", mostKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("it holds no key: openssl rand -base64 48")
	}
	return keys, nil
}
