// SPDX-License-Identifier: Apache-2.0

package clienthello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// vector reads the bytes that a real client sent first.
func vector(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// scan gives a scanner pieces of the given size; 0: all at once.
func scan(b []byte, size int) (Hello, bool, error) {
	var s Scanner
	if size == 0 {
		done, err := s.Add(b)
		return s.Hello(), done, err
	}
	var done bool
	var err error
	for p := range slices.Chunk(b, size) {
		done, err = s.Add(p)
	}
	return s.Hello(), done, err
}

// records writes the message of a hello anew, in records of the given size.
func records(hello []byte, size int) []byte {
	var msg, out []byte
	for b := hello; len(b) >= recordHeader; {
		n := int(binary.BigEndian.Uint16(b[3:]))
		msg, b = append(msg, b[recordHeader:recordHeader+n]...), b[recordHeader+n:]
	}
	for p := range slices.Chunk(msg, size) {
		out = append(out, typeHandshake, 3, 1, byte(len(p)>>8), byte(len(p)))
		out = append(out, p...)
	}
	return out
}

// TestClients: what real clients send (of Debian 12, and Chromium 156), whole, in
// segments of every small size and in records of every small size, is read the
// same; and it is not complete a byte before its end.
func TestClients(t *testing.T) {
	web := []string{"h2", "http/1.1"}
	for name, want := range map[string]Hello{
		"curl":           {Name: "api.example.com", ALPN: web},
		"curl_dot":       {Name: "api.example.com", ALPN: web},
		"curl_tls12":     {Name: "api.example.com"},
		"curl_address":   {ALPN: web},
		"openssl":        {Name: "api.example.com", ALPN: []string{"postgresql"}},
		"openssl_noname": {},
		"openssl_upper":  {Name: "api.example.com"},
		"gnutls":         {Name: "api.example.com", ALPN: web},
		"chromium":       {Name: "api.example.com", ALPN: web, ECH: true},
	} {
		hello := vector(t, name)
		same := func(how string, got Hello, done bool, err error) {
			t.Helper()
			if err != nil || !done || got.Name != want.Name || !slices.Equal(got.ALPN, want.ALPN) || got.ECH != want.ECH {
				t.Errorf("%s %s: %+v, %v, %v; want %+v", name, how, got, done, err, want)
			}
		}
		for _, size := range []int{0, 1, 2, 3, 5, 7, 64, 513} {
			got, done, err := scan(hello, size)
			same("in segments", got, done, err)
		}
		for size := 1; size <= len(hello); size = size*2 + 1 {
			got, done, err := scan(records(hello, size), 0)
			same("in records", got, done, err)
			got, done, err = scan(records(hello, size), 1)
			same("in records, byte by byte", got, done, err)
		}
		for i := range hello {
			if got, done, err := scan(hello[:i], 0); done || err != nil || got.Name != "" {
				t.Fatalf("%s: done after %d of %d bytes (%v)", name, i, len(hello), err)
			}
		}
		got, done, err := scan(append(slices.Clone(hello), "early"...), 0)
		same("with more behind it", got, done, err)
	}
	if n := len(vector(t, "chromium")); n < 1700 {
		t.Errorf("the hello of Chromium has %d bytes: none with post-quantum keys", n)
	}
}

// goHello is what crypto/tls sends, post-quantum keys included.
func goHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	near, far := net.Pipe()
	go func() {
		_ = tls.Client(near, cfg).Handshake() // ends when the pipe does
		_ = near.Close()
	}()
	defer func() { _ = far.Close() }()
	_ = far.SetDeadline(time.Now().Add(10 * time.Second))
	var s Scanner
	var all []byte
	for buf := make([]byte, 4096); ; {
		n, err := far.Read(buf)
		all = append(all, buf[:n]...)
		done, bad := s.Add(buf[:n])
		if bad != nil || err != nil {
			t.Fatal(bad, err)
		}
		if done {
			return all
		}
	}
}

// TestGo: the same with Go's client, whose hello is that of most proxies.
func TestGo(t *testing.T) {
	hello := goHello(t, &tls.Config{ServerName: "Go.Example.COM", NextProtos: []string{"h2"}})
	if got, done, err := scan(hello, 0); err != nil || !done || got.Name != "go.example.com" || !got.Offers("h2") || got.Offers("http/1.1") {
		t.Errorf("%+v, %v, %v", got, done, err)
	}
	if len(hello) < 1400 {
		t.Errorf("%d bytes: none with post-quantum keys", len(hello))
	}
	hello = goHello(t, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // there is no handshake
	if got, done, err := scan(hello, 0); err != nil || !done || got.Name != "" || got.ALPN != nil {
		t.Errorf("%+v, %v, %v", got, done, err)
	}
}

// A builder makes hellos that no client makes.
type builder struct {
	session int
	ciphers []byte
	methods int
	ext     [][]byte // kind, length, data
	tail    []byte   // behind the extensions
	none    bool     // no extensions at all
}

func extension(kind int, data []byte) []byte {
	return append([]byte{byte(kind >> 8), byte(kind), byte(len(data) >> 8), byte(len(data))}, data...)
}

func vec16(b []byte) []byte { return append([]byte{byte(len(b) >> 8), byte(len(b))}, b...) }

func nameExt(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(append(list, 0), vec16([]byte(n))...)
	}
	return extension(extServerName, vec16(list))
}

func (b *builder) message() []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(append(body, byte(b.session)), make([]byte, b.session)...)
	ciphers := b.ciphers
	if ciphers == nil {
		ciphers = []byte{0x13, 0x01}
	}
	body = append(body, vec16(ciphers)...)
	body = append(append(body, byte(b.methods)), make([]byte, b.methods)...)
	if !b.none {
		body = append(body, vec16(slices.Concat(b.ext...))...)
	}
	body = append(body, b.tail...)
	return append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

func (b *builder) bytes(size int) []byte {
	msg := b.message()
	if size == 0 {
		size = maxRecord
	}
	var out []byte
	for p := range slices.Chunk(msg, size) {
		out = append(append(out, typeHandshake, 3, 1, byte(len(p)>>8), byte(len(p))), p...)
	}
	return out
}

// TestMade: hellos against the rules are refused, and odd ones that keep them are
// read.
func TestMade(t *testing.T) {
	grease := extension(0x2a2a, nil)
	for what, c := range map[string]struct {
		b    builder
		want error
		name string
	}{
		"plain":                {builder{methods: 1, ext: [][]byte{nameExt("a.example.com")}}, nil, "a.example.com"},
		"no extensions at all": {builder{methods: 1, none: true}, nil, ""},
		"empty extensions":     {builder{methods: 1}, nil, ""},
		"grease first, last":   {builder{methods: 1, ext: [][]byte{grease, nameExt("a.example.com"), extension(0xfafa, []byte{0})}}, nil, "a.example.com"},
		"grease in ciphers":    {builder{methods: 1, ciphers: []byte{0x1a, 0x1a, 0x13, 1}, ext: [][]byte{nameExt("a.test")}}, nil, "a.test"},
		"two of one grease":    {builder{methods: 1, ext: [][]byte{grease, grease}}, ErrMalformed, ""},
		"upper case, dot":      {builder{methods: 1, ext: [][]byte{nameExt("A.Example.COM.")}}, nil, "a.example.com"},
		"underscore":           {builder{methods: 1, ext: [][]byte{nameExt("_a.b")}}, nil, "_a.b"},
		"address":              {builder{methods: 1, ext: [][]byte{nameExt("127.0.0.1")}}, nil, "127.0.0.1"},
		"two names":            {builder{methods: 1, ext: [][]byte{nameExt("a.test", "b.test")}}, ErrMalformed, ""},
		"two lists":            {builder{methods: 1, ext: [][]byte{nameExt("a.test"), nameExt("b.test")}}, ErrMalformed, ""},
		"empty name":           {builder{methods: 1, ext: [][]byte{nameExt("")}}, ErrMalformed, ""},
		"only a dot":           {builder{methods: 1, ext: [][]byte{nameExt(".")}}, ErrMalformed, ""},
		"empty label":          {builder{methods: 1, ext: [][]byte{nameExt("a..test")}}, ErrMalformed, ""},
		"label missing":        {builder{methods: 1, ext: [][]byte{nameExt(".a.test")}}, ErrMalformed, ""},
		"two dots at the end":  {builder{methods: 1, ext: [][]byte{nameExt("a.test..")}}, ErrMalformed, ""},
		"NUL":                  {builder{methods: 1, ext: [][]byte{nameExt("b.test\x00.a.test")}}, ErrMalformed, ""},
		"star":                 {builder{methods: 1, ext: [][]byte{nameExt("*.a.test")}}, ErrMalformed, ""},
		"line break":           {builder{methods: 1, ext: [][]byte{nameExt("a.test\r\nb")}}, ErrMalformed, ""},
		"not ASCII":            {builder{methods: 1, ext: [][]byte{nameExt("bücher.test")}}, ErrMalformed, ""},
		"253":                  {builder{methods: 1, ext: [][]byte{nameExt(strings.Repeat("a.", 126) + "a")}}, nil, strings.Repeat("a.", 126) + "a"},
		"254":                  {builder{methods: 1, ext: [][]byte{nameExt(strings.Repeat("a.", 126) + "aa")}}, ErrMalformed, ""},
		"list of nothing":      {builder{methods: 1, ext: [][]byte{extension(extServerName, nil)}}, ErrMalformed, ""},
		"name too short":       {builder{methods: 1, ext: [][]byte{extension(extServerName, []byte{0, 5, 0, 0, 9, 'a', 'b'})}}, ErrMalformed, ""},
		"name's list too long": {builder{methods: 1, ext: [][]byte{extension(extServerName, append(vec16([]byte{0, 0, 1, 'a'}), 'x'))}}, ErrMalformed, ""},
		"another kind of name": {builder{methods: 1, ext: [][]byte{extension(extServerName, vec16([]byte{7, 0, 1, 'x', 0, 0, 1, 'a'}))}}, nil, "a"},
		"ALPN of nothing":      {builder{methods: 1, ext: [][]byte{extension(extALPN, vec16(nil))}}, ErrMalformed, ""},
		"empty protocol":       {builder{methods: 1, ext: [][]byte{extension(extALPN, vec16([]byte{0}))}}, ErrMalformed, ""},
		"65 protocols":         {builder{methods: 1, ext: [][]byte{extension(extALPN, vec16(bytes.Repeat([]byte{1, 'x'}, 65)))}}, ErrMalformed, ""},
		"session of 33":        {builder{methods: 1, session: 33}, ErrMalformed, ""},
		"no cipher":            {builder{methods: 1, ciphers: []byte{}}, ErrMalformed, ""},
		"half a cipher":        {builder{methods: 1, ciphers: []byte{1, 2, 3}}, ErrMalformed, ""},
		"no compression":       {builder{}, ErrMalformed, ""},
		"more behind":          {builder{methods: 1, tail: []byte{0}}, ErrMalformed, ""},
		"half an extension":    {builder{methods: 1, ext: [][]byte{{0, 0, 0}}}, ErrMalformed, ""},
		"257 extensions": {builder{methods: 1, ext: func() (out [][]byte) {
			for i := range 257 {
				out = append(out, extension(0x7000+i, nil))
			}
			return out
		}()}, ErrMalformed, ""},
	} {
		for _, size := range []int{0, 1, 9} {
			got, done, err := scan(c.b.bytes(size), 0)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || done != (c.want == nil) || got.Name != c.name {
				t.Errorf("%s: %+v, %v, %v; want %q, %v", what, got, done, err, c.name, c.want)
			}
		}
	}
}

// TestBounds: a hello of 16 KiB passes, whole and in thousands of records; one
// more byte does not, and is refused when it says so, not when it has come.
func TestBounds(t *testing.T) {
	full := builder{methods: 1, ext: [][]byte{nameExt("a.test"), nil}}
	room := MaxMessage - len(full.message())
	full.ext[1] = extension(21, make([]byte, room-4)) // padding (RFC 7685)
	if n := len(full.message()); n != MaxMessage {
		t.Fatalf("made %d bytes", n)
	}
	for _, size := range []int{0, 1 << 10, 3, 2} {
		got, done, err := scan(full.bytes(size), 0)
		if err != nil || !done || got.Name != "a.test" {
			t.Errorf("16 KiB in records of %d: %v, %v", size, done, err)
		}
	}
	if _, done, err := scan(full.bytes(1), 0); done || !errors.Is(err, ErrTooLong) {
		t.Errorf("16 KiB in records of one byte: %v, %v", done, err)
	}
	long := []byte{typeHandshake, 3, 1, 0, 4, typeClientHello, 0, 0x40, 1}
	if _, _, err := scan(long, 0); !errors.Is(err, ErrTooLong) {
		t.Errorf("a length of 16 KiB and one: %v", err)
	}
	// What is held does not grow beyond the message, whatever comes.
	var s Scanner
	_, _ = s.Add(full.bytes(0))
	if cap(s.msg) > 2*MaxMessage {
		t.Errorf("holds %d bytes", cap(s.msg))
	}
	s.Reset()
	if done, err := s.Add(vector(t, "curl")); !done || err != nil || s.Hello().Name != "api.example.com" {
		t.Errorf("after Reset: %v, %v", done, err)
	}
}

// TestGarbage: other protocols are told by the first byte that is not of TLS.
func TestGarbage(t *testing.T) {
	for text, want := range map[string]error{
		"GET / HTTP/1.1\r\n\r\n":                ErrNotTLS,
		"SSH-2.0-OpenSSH_9.2\r\n":               ErrNotTLS,
		"\x80\x2e\x01\x00\x02":                  ErrNotTLS, // SSL 2
		"\x16\x02\x00":                          ErrNotTLS,
		"\x16GET":                               ErrNotTLS,
		"\x15\x03\x01\x00\x02\x01\x00":          ErrNotTLS, // an alert
		"\x16\x03\x01\x00\x04\x02\x00\x00":      ErrNotTLS, // a ServerHello
		"\x16\x03\x01\x00\x00":                  ErrMalformed,
		"\x16\x03\x01\x40\x01":                  ErrMalformed,
		"\x16\x03\x01\x00\x01\x01\x15\x03":      ErrMalformed,
		"\x16\x03\x01\x00\x01\x01\x16\x07":      ErrMalformed,
		"\x16\x03\x01\x00\x05\x01\x00\x00\x00x": ErrMalformed, // an empty message, and more in the record
		"\x16\x03\x01\x00\x04\x01\x00\x00\x00":  ErrMalformed,
	} {
		var s Scanner
		for i := range len(text) {
			if _, err := s.Add([]byte{text[i]}); err != nil {
				if !errors.Is(err, want) {
					t.Errorf("%q: %v, want %v", text, err, want)
				}
				break
			} else if i == len(text)-1 {
				t.Errorf("%q passes", text)
			}
		}
		if got := s.Begun(); got != (!errors.Is(want, ErrNotTLS)) {
			t.Errorf("%q begun: %v", text, got)
		}
	}
}

func TestPostgres(t *testing.T) {
	ask := SSLRequest()
	for text, want := range map[string]Ask{
		"":                                 AskMore,
		"\x00":                             AskMore,
		string(ask[:7]):                    AskMore,
		string(ask[:]):                     AskTLS,
		"\x16\x03\x01":                     AskNothing,
		"GET / HTTP/1.1":                   AskNothing,
		"\x00\x00\x00\x08\x04\xd2\x16\x30": AskGSS,
		"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02": AskCancel,
		"\x00\x00\x00\x29\x00\x03\x00\x00user\x00":                         AskPlain,
		"\x00\x00\x00\x09\x04\xd2\x16\x2f":                                 AskNothing,
		"\x00\x00\xff\xff\x00\x03\x00\x00":                                 AskNothing,
	} {
		if got := Postgres([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	got := PostgresError("08P01", "no")
	if int(binary.BigEndian.Uint32(got[1:])) != len(got)-1 || got[0] != 'E' || !bytes.HasSuffix(got, []byte("C08P01\x00Mno\x00\x00")) {
		t.Errorf("%q", got)
	}
}

// said is a connection that a server reads bytes from, and then the end.
type said struct {
	io.Reader
	net.Conn
}

func (s said) Read(p []byte) (int, error)     { return s.Reader.Read(p) }
func (said) Write(p []byte) (int, error)      { return len(p), nil }
func (said) Close() error                     { return nil }
func (said) SetDeadline(time.Time) error      { return nil }
func (said) SetReadDeadline(time.Time) error  { return nil }
func (said) SetWriteDeadline(time.Time) error { return nil }
func (said) LocalAddr() net.Addr              { return nil }
func (said) RemoteAddr() net.Addr             { return nil }

var errSeen = errors.New("seen")

// goReads is what crypto/tls makes of the bytes; nil: it has no hello.
func goReads(b []byte) (h *tls.ClientHelloInfo) {
	cfg := &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
		h = i
		return nil, errSeen
	}}
	_ = tls.Server(said{Reader: bytes.NewReader(b)}, cfg).Handshake() // always an error
	return h
}

// FuzzHello: nothing panics; however the bytes are cut, the outcome is the same;
// and a hello that both this package and crypto/tls take has one meaning.
func FuzzHello(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.hex")
	for _, name := range files {
		f.Add(vector(f, strings.TrimSuffix(filepath.Base(name), ".hex")), uint16(1))
	}
	b := builder{methods: 1, ext: [][]byte{nameExt("a.test"), extension(extALPN, vec16([]byte("\x02h2")))}}
	f.Add(b.bytes(0), uint16(3))
	f.Add(b.bytes(7), uint16(0))
	f.Fuzz(func(t *testing.T, in []byte, size uint16) {
		whole, done, err := scan(in, 0)
		if size > 0 {
			got, d, e := scan(in, int(size))
			if d != done || (e == nil) != (err == nil) || e != nil && e.Error() != err.Error() || got.Name != whole.Name || !slices.Equal(got.ALPN, whole.ALPN) {
				t.Fatalf("whole: %+v %v %v; in pieces: %+v %v %v", whole, done, err, got, d, e)
			}
		}
		if done && err != nil || !done && whole.Name != "" {
			t.Fatalf("%+v, done %v, %v", whole, done, err)
		}
		theirs := goReads(in)
		if !done || theirs == nil {
			return
		}
		if name := strings.ToLower(theirs.ServerName); name != whole.Name || !slices.Equal(theirs.SupportedProtos, whole.ALPN) {
			t.Fatalf("here %q %q, in crypto/tls %q %q", whole.Name, whole.ALPN, name, theirs.SupportedProtos)
		}
	})
}

// BenchmarkHello is the cost of a name: that of a hello of a browser.
func BenchmarkHello(b *testing.B) {
	hello := vector(b, "chromium")
	var s Scanner
	b.ReportAllocs()
	for b.Loop() {
		s.Reset()
		if done, err := s.Add(hello); !done || err != nil {
			b.Fatal(err)
		}
	}
}
