// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"log/slog"
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

const (
	memoryEvery = time.Second
	memoryCalm  = 0.95 // of the limit: below it the pressure is over
)

// memory watches the runtime's memory against its limit. Above it the garbage
// collector takes more and more of the machine, so connections are no longer
// kept: each one that ends gives memory back (S17).
type memory struct {
	// Constant.
	limit int64 // math.MaxInt64: none
	log   *slog.Logger
	used  func() int64

	pressed atomic.Bool
	quit    chan struct{}
	loop    sync.WaitGroup
}

func newMemory(log *slog.Logger) *memory {
	return &memory{limit: debug.SetMemoryLimit(-1), log: log, used: memoryUsed, quit: make(chan struct{})}
}

// start begins to watch, where there is a limit.
func (m *memory) start() {
	if m.limit == math.MaxInt64 {
		return
	}
	m.loop.Go(func() {
		t := time.NewTicker(memoryEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				m.look()
			case <-m.quit:
				return
			}
		}
	})
}

// close ends watching. It is called once.
func (m *memory) close() {
	close(m.quit)
	m.loop.Wait()
}

func (m *memory) look() {
	used, was := m.used(), m.pressed.Load()
	switch {
	case !was && used >= m.limit:
		m.pressed.Store(true)
		m.log.Warn("memory limit reached: client connections are no longer kept", "used", used, "limit", m.limit)
	case was && used < int64(float64(m.limit)*memoryCalm):
		m.pressed.Store(false)
		m.log.Info("memory is below its limit again", "used", used, "limit", m.limit)
	}
}

// memoryUsed is what the runtime's limit is compared with: all it has mapped,
// less what it gave back.
func memoryUsed() int64 {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64())
}
