// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// What this version speaks, and the oldest that it still understands.
const (
	protocol = 1
	oldest   = 1
)

const (
	// maxMessage bounds a message: the state of 10,000 backends is about 10 MB.
	maxMessage = 256 << 20
	// maxRights is how many descriptors go with one message; the kernel's bound
	// (SCM_MAX_FD) is 253.
	maxRights = 128
	// pieceLen is how much of a message is made room for at first.
	pieceLen = 64 << 10
	// headerLen is the length of a message's length.
	headerLen = 4
)

// The kinds of messages. Others are passed over.
const (
	kindHello   = "hello"   // predecessor: who it is, how many sockets follow
	kindSockets = "sockets" // predecessor: some of them
	kindBuilt   = "built"   // successor
	kindState   = "state"   // predecessor
	kindReady   = "ready"   // successor
	kindFailed  = "failed"  // successor, instead of built or ready
	kindReport  = "report"  // predecessor, after ready
	kindWord    = "word"    // successor, after ready
)

// message is the union of all of them.
type message struct {
	Kind     string          `json:"kind"`
	Protocol int             `json:"protocol,omitempty"` // hello, built
	Oldest   int             `json:"oldest,omitempty"`   // hello, built
	Version  string          `json:"version,omitempty"`  // hello, built
	PID      int             `json:"pid,omitempty"`      // hello
	Sockets  int             `json:"sockets,omitempty"`  // hello: how many in all
	Binds    []string        `json:"binds,omitempty"`    // sockets: one for each descriptor that travels along
	State    []byte          `json:"state,omitempty"`    // state
	Notes    json.RawMessage `json:"notes,omitempty"`    // hello
	Why      string          `json:"why,omitempty"`      // failed
	Declined []string        `json:"declined,omitempty"` // ready: the sockets that it gave up
	Word     Word            `json:"word,omitempty"`     // word
	Report   *Report         `json:"report,omitempty"`   // report
}

// speaks reports why the two sides cannot understand each other.
func (m *message) speaks(who string) error {
	if m.Protocol < oldest || m.Oldest > protocol {
		return fmt.Errorf("the %s (version %s) speaks handover protocol %d to %d, this one %d to %d: go through a version between them, or restart",
			who, m.Version, m.Oldest, m.Protocol, oldest, protocol)
	}
	return nil
}

// errGarbage marks what cannot be a message.
var errGarbage = errors.New("what came is not a handover message")

// channel is one end of the pair. send may be called by several goroutines,
// receive by one.
type channel struct {
	conn *net.UnixConn

	writing sync.Mutex

	// Owned by the reader.
	rights []*os.File // that came and were not asked for yet
	oob    []byte
}

// newChannel takes a descriptor over: f is closed.
func newChannel(f *os.File) (*channel, error) {
	nc, err := net.FileConn(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	conn, ok := nc.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a %s socket, not a unix one", nc.LocalAddr().Network()), nc.Close())
	}
	return &channel{conn: conn, oob: make([]byte, syscall.CmsgSpace(maxRights*4))}, nil
}

// send writes a message, with descriptors that stay the caller's.
func (c *channel) send(m *message, files ...*os.File) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(text) > maxMessage {
		return fmt.Errorf("a message of %d bytes: at most %d", len(text), maxMessage)
	}
	packet := append(binary.BigEndian.AppendUint32(make([]byte, 0, headerLen+len(text)), uint32(len(text))), text...)
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(files) == 0 {
		_, err = c.conn.Write(packet)
		return err
	}
	var n int
	err = withDescriptors(files, nil, func(fds []int) error {
		var err error
		n, _, err = c.conn.WriteMsgUnix(packet, syscall.UnixRights(fds...), nil)
		return err
	})
	if err == nil && n < len(packet) { // the descriptors went with the first byte
		_, err = c.conn.Write(packet[n:])
	}
	return err
}

// withDescriptors runs f with the descriptors of all files, none of which is
// closed or changed meanwhile: File.Fd would clear O_NONBLOCK on a socket that
// is shared with the other process.
func withDescriptors(files []*os.File, fds []int, f func(fds []int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) { inner = withDescriptors(files[1:], append(fds, int(fd)), f) })
	return errors.Join(err, inner)
}

// receive reads the next message and the sockets that it names.
func (c *channel) receive() (*message, []*os.File, error) {
	var head [headerLen]byte
	if err := c.fill(head[:]); err != nil {
		return nil, nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, nil, fmt.Errorf("%w: it begins with %q", errGarbage, head[:])
	}
	var text []byte
	for len(text) < int(n) { // in pieces: a length that was made up costs nothing
		at := len(text)
		text = append(text, make([]byte, min(int(n)-at, max(at, pieceLen)))...)
		if err := c.fill(text[at:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, nil, err
		}
	}
	m := new(message)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errGarbage, err)
	}
	if len(m.Binds) > len(c.rights) {
		return nil, nil, fmt.Errorf("%w: it names %d sockets, and %d came with it", errGarbage, len(m.Binds), len(c.rights))
	}
	files := c.rights[:len(m.Binds):len(m.Binds)]
	c.rights = c.rights[len(m.Binds):]
	return m, files, nil
}

// fill reads all of b, and keeps the descriptors that come with it.
func (c *channel) fill(b []byte) error {
	for len(b) > 0 {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(b, c.oob)
		if oobn > 0 {
			if rerr := c.keep(c.oob[:oobn]); err == nil {
				err = rerr
			}
		}
		switch {
		case err != nil:
			return err
		case flags&syscall.MSG_CTRUNC != 0:
			return errors.New("descriptors were lost on the way: is the limit of open files reached?")
		case n == 0:
			return io.EOF
		}
		b = b[n:]
	}
	return nil
}

func (c *channel) keep(oob []byte) error {
	all, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range all {
		fds, err := syscall.ParseUnixRights(&all[i])
		if err != nil {
			return err
		}
		for _, fd := range fds { // close-on-exec already: the net package asks for it
			c.rights = append(c.rights, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return nil
}

// expectBy bounds what is sent and received from now on; the zero Time is no
// bound.
func (c *channel) expectBy(t time.Time) { _ = c.conn.SetDeadline(t) } // fails only when closed, and then so does the rest

// close also closes descriptors that nobody asked for. It is called by the
// reader, or when there is none.
func (c *channel) close() {
	_ = c.conn.Close()
	for _, f := range c.rights {
		_ = f.Close()
	}
	c.rights = nil
}
