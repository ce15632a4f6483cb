// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
	"github.com/weirlb/weir/internal/inputfile"
	"github.com/weirlb/weir/internal/listen"
)

// opsCloseTime is how long calls of operators may still take at the end.
const opsCloseTime = time.Second

// opsRetireTime is how long calls may still take that came by an address which a
// reload changed: a profile's longest and the time to send it.
const opsRetireTime = 6 * time.Minute

// ops is everything that faces operators: the admin and the status address.
// They are there until the very end, so that a drain can be watched.
type ops struct {
	mu            sync.Mutex // guards what follows
	admin, status *opsServer // nil: off
	started       bool
}

// opsServer is one address. It is immutable: a change makes another one, on the
// same socket where the bind stays.
type opsServer struct {
	srv    *admin.Server
	socket *listen.Socket
	addr   string // as bound
	made   opsWish
}

// opsWish is what a server was made from.
type opsWish struct {
	bind  string
	admin config.Admin // zero for status
	token string       // what its file held
}

// stagedOps is what a plan makes of both: everything that can fail has been
// done.
type stagedOps struct{ admin, status *opsServer }

// stage makes the servers that a plan wants, those that run already included.
// Either adopt or drop is to be called with the result.
func (o *ops) stage(e *Engine, plan *config.Plan) (*stagedOps, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &stagedOps{admin: o.admin, status: o.status}
	want, err := adminWish(&plan.Admin)
	if err == nil {
		s.admin, err = o.admin.as(e, want)
	}
	if err != nil {
		return nil, err
	}
	if s.status, err = o.status.as(e, opsWish{bind: plan.Status.Bind}); err != nil {
		o.dropLocked(s, &stagedOps{admin: o.admin, status: o.status})
		return nil, err
	}
	return s, nil
}

func adminWish(a *config.Admin) (opsWish, error) {
	w := opsWish{bind: a.Bind, admin: *a}
	if a.Bind == "" || a.TokenFile == "" {
		return w, nil
	}
	text, err := inputfile.Read(a.TokenFile, inputfile.Most)
	if err != nil {
		return w, fmt.Errorf("admin: token file: %w", err)
	}
	w.token = string(text)
	return w, nil
}

// as returns a server as wanted, which may be this one.
func (s *opsServer) as(e *Engine, want opsWish) (*opsServer, error) {
	if want.bind == "" {
		return nil, nil //nolint:nilnil // none is wanted
	}
	if s != nil && reflect.DeepEqual(s.made, want) {
		return s, nil
	}
	what := "admin"
	if want.admin.Bind == "" {
		what = "status"
	}
	k, err := e.opt.Sockets.TakePrivate(want.bind)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	bind := want.bind
	if strings.HasPrefix(bind, "systemd:") { // who may come in depends on where it is
		bind = k.Addr().String()
		if k.Addr().Network() == "unix" {
			bind = "unix:" + bind
		}
	}
	next := &opsServer{socket: k, addr: opsAddr(k.Addr()), made: want}
	if what == "admin" {
		next.srv, err = admin.Listen(admin.Options{
			Bind: bind, Listener: k.Listener(), TokenFile: want.admin.TokenFile, Hosts: want.admin.Hosts,
			Controller: e, Metrics: e.metrics.Handler(), Logger: e.log,
		})
	} else {
		next.srv, err = admin.ListenStatus(admin.StatusOptions{
			Bind: bind, Listener: k.Listener(), Controller: e, Metrics: e.metrics.Handler(), Logger: e.log,
		})
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return next, nil
}

// adopt puts what is staged into force. Calls that are under way, the one that
// asked for this among them, are answered where they came in.
func (o *ops) adopt(e *Engine, s *stagedOps) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := stagedOps{admin: o.admin, status: o.status}
	o.admin, o.status = s.admin, s.status
	if o.started {
		o.startLocked() // before the old ones end: their sockets may be the same
	}
	for _, gone := range old.all() {
		if !s.has(gone) {
			e.retirer.Go(func() { gone.retire(e.quit) })
		}
	}
}

// drop gives up what stage made.
func (o *ops) drop(s *stagedOps) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropLocked(s, &stagedOps{admin: o.admin, status: o.status})
}

func (o *ops) dropLocked(s, keep *stagedOps) {
	for _, n := range s.all() {
		if !keep.has(n) {
			_ = n.srv.Close(context.Background()) // nothing has been served
		}
	}
}

func (s *stagedOps) all() []*opsServer {
	return slices.DeleteFunc([]*opsServer{s.admin, s.status}, func(o *opsServer) bool { return o == nil })
}

func (s *stagedOps) has(o *opsServer) bool { return s.admin == o || s.status == o }

// retire ends a server whose address has changed, once its calls are answered.
func (s *opsServer) retire(quit <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), opsRetireTime)
	defer cancel()
	go func() {
		select {
		case <-quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	s.srv.Yield() // who follows the events comes back
	_ = s.socket.Close()
	select {
	case <-s.socket.Done(): // who is connecting is still served
	case <-ctx.Done():
	}
	_ = s.srv.Close(ctx) // what is cut off then was told to hurry, or took too long
}

// addrs returns where the admin and the status address are bound; empty: off.
func (o *ops) addrs() (admin, status string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.admin != nil {
		admin = o.admin.addr
	}
	if o.status != nil {
		status = o.status.addr
	}
	return admin, status
}

func (o *ops) servers() []*opsServer {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := stagedOps{admin: o.admin, status: o.status}
	return s.all()
}

func opsAddr(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return reachable(a)
}

func (o *ops) start() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started = true
	o.startLocked()
}

func (o *ops) startLocked() {
	s := stagedOps{admin: o.admin, status: o.status}
	for _, n := range s.all() {
		n.srv.Start()
	}
}

// yield sends operators to the process that took over, back undoes it.
func (o *ops) yield() {
	for _, s := range o.servers() {
		s.srv.Yield()
	}
}

func (o *ops) back() {
	for _, s := range o.servers() {
		s.srv.Return()
	}
}

// release closes the addresses; calls go on until close.
func (o *ops) release() {
	for _, s := range o.servers() {
		s.srv.Release()
	}
}

func (o *ops) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), opsCloseTime)
	defer cancel()
	var errs []error
	for _, s := range o.servers() {
		if err := s.srv.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err) // who still downloads a profile now is cut off, which is no failure
		}
	}
	return errors.Join(errs...)
}
