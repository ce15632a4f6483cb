// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// benchBlocks are heads as a browser sends them on one connection: most lines
// come again, path and cookie differ.
func benchBlocks(b *testing.B) (blocks [][]byte) {
	var wire bytes.Buffer
	enc := hpack.NewEncoder(&wire)
	for i := range 64 {
		wire.Reset()
		for _, l := range [][2]string{
			{":method", "GET"}, {":scheme", "https"}, {":authority", "www.example.com"}, {":path", fmt.Sprintf("/items/%d?page=%d", i, i%7)},
			{"user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:109.0) Gecko/20100101 Firefox/115.0"}, {"accept", "text/html,application/xhtml+xml"},
			{"accept-encoding", "gzip, deflate, br"}, {"cookie", fmt.Sprintf("session=0123456789abcdef; seen=%d", i)},
		} {
			if err := enc.WriteField(hpack.HeaderField{Name: l[0], Value: l[1]}); err != nil {
				b.Fatal(err)
			}
		}
		blocks = append(blocks, bytes.Clone(wire.Bytes()))
	}
	return blocks
}

// BenchmarkDecode reads 64 heads of one connection; BenchmarkDecodeXNet does so
// with x/net's decoder.
func BenchmarkDecode(b *testing.B) {
	blocks := benchBlocks(b)
	b.ReportAllocs()
	for b.Loop() {
		var d decoder
		d.reset(defaultTable)
		var f entry
		for _, block := range blocks {
			d.begin(block)
			for more := true; more; {
				var err error
				if more, err = d.next(&f); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

func BenchmarkDecodeXNet(b *testing.B) {
	blocks := benchBlocks(b)
	b.ReportAllocs()
	for b.Loop() {
		d := hpack.NewDecoder(defaultTable, func(hpack.HeaderField) {})
		for _, block := range blocks {
			if _, err := d.Write(block); err != nil {
				b.Fatal(err)
			}
			_ = d.Close()
		}
	}
}
