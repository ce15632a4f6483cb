// SPDX-License-Identifier: Apache-2.0

package message

import "testing"

// TestAddAll checks that lines kept apart arrive behind what was there, that
// removed and borrowed ones stay behind, and that the result is independent of
// its source.
func TestAddAll(t *testing.T) {
	var kept Fields
	kept.Reset([]byte("A: 1\r\n"))
	kept.AddWire(Other, 0, 1, 3, 4, 6)
	kept.Add(XRealIP, "X-Real-IP", "192.0.2.1")
	kept.Add(Other, "Gone", "x")
	kept.Add(XForwardedProto, "X-Forwarded-Proto", "https")
	kept.RemoveName("gone")

	var f Fields
	f.Reset([]byte("Host: a\r\nZ: 2\r\n"))
	f.AddWire(Host, 0, 4, 6, 7, 9)
	f.AddWire(Other, 9, 10, 12, 13, 15)
	f.Add(Other, "Own", "o")
	f.AddAll(&kept)
	kept.Reset(nil)
	kept.Add(Other, "Overwritten", "yyyyyyyyyyyyyyyyyyyyyyy")

	want := "Host: a\r\nZ: 2\r\nOwn: o\r\nX-Real-IP: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n"
	if got := string(f.AppendWire(nil)); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if v, ok := f.Get(XForwardedProto); !ok || string(v) != "https" {
		t.Errorf("Get: %q, %v", v, ok)
	}
	if n := testing.AllocsPerRun(100, func() {
		f.Reset(nil)
		f.AddAll(&kept)
	}); n != 0 {
		t.Errorf("AddAll allocates %v times", n)
	}
}
