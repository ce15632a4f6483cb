// SPDX-License-Identifier: Apache-2.0

package http1

// Limits bound what a peer may send. A zero field means the default.
type Limits struct {
	MaxHeaderBytes int   // whole head with its request or status line; 64 KiB
	MaxFields      int   // field lines; 256
	MaxTarget      int   // request-target; 16 KiB
	MaxRequests    int64 // on one connection of a client; no limit
}

// The defaults, and what is not worth a setting.
const (
	DefaultMaxHeaderBytes = 64 << 10
	DefaultMaxFields      = 256
	DefaultMaxTarget      = 16 << 10

	maxMethod     = 32        // longest registered one is UPDATEREDIRECTREF (17)
	maxChunkLine  = 512       // one chunk-size line with its extensions
	maxExtensions = 16 << 10  // all extensions of one message
	maxTrailers   = 16 << 10  // trailer section
	maxChunk      = 1<<63 - 1 // a chunk's size must fit int64
)

func (l *Limits) headerBytes() int { return orDefault(l.MaxHeaderBytes, DefaultMaxHeaderBytes) }
func (l *Limits) fields() int      { return orDefault(l.MaxFields, DefaultMaxFields) }
func (l *Limits) target() int      { return orDefault(l.MaxTarget, DefaultMaxTarget) }

func orDefault(n, d int) int {
	if n > 0 {
		return n
	}
	return d
}
