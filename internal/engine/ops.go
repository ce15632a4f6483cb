// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/weirlb/weir/internal/admin"
	"github.com/weirlb/weir/internal/config"
)

// opsCloseTime is how long calls of operators may still take at the end.
const opsCloseTime = time.Second

// ops is everything that faces operators: the admin and the status address.
// They are there until the very end, so that a drain can be watched.
type ops struct {
	servers               []*admin.Server
	adminAddr, statusAddr string // as bound; empty: off
}

// newOps binds the addresses of a plan.
func newOps(e *Engine, plan *config.Plan) (*ops, error) {
	o := &ops{}
	add := func(s *admin.Server, err error) (string, error) {
		if err != nil {
			return "", errors.Join(err, o.close())
		}
		o.servers = append(o.servers, s)
		return opsAddr(s.Addr()), nil
	}
	bind := func(what, bind string) (net.Listener, error) {
		k, err := e.opt.Sockets.TakePrivate(bind)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", what, err), o.close())
		}
		return k.Listener(), nil
	}
	if a := &plan.Admin; a.Bind != "" {
		ln, err := bind("admin", a.Bind)
		if err != nil {
			return nil, err
		}
		if o.adminAddr, err = add(admin.Listen(admin.Options{
			Bind: a.Bind, Listener: ln, TokenFile: a.TokenFile, Hosts: a.Hosts,
			Controller: e, Metrics: e.metrics.Handler(), Logger: e.log,
		})); err != nil {
			return nil, err
		}
	}
	if where := plan.Status.Bind; where != "" {
		ln, err := bind("status", where)
		if err != nil {
			return nil, err
		}
		if o.statusAddr, err = add(admin.ListenStatus(admin.StatusOptions{
			Bind: where, Listener: ln, Controller: e, Metrics: e.metrics.Handler(), Logger: e.log,
		})); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func opsAddr(a net.Addr) string {
	if a.Network() == "unix" {
		return "unix:" + a.String()
	}
	return reachable(a)
}

func (o *ops) start() {
	for _, s := range o.servers {
		s.Start()
	}
}

// yield sends operators to the process that took over, back undoes it.
func (o *ops) yield() {
	for _, s := range o.servers {
		s.Yield()
	}
}

func (o *ops) back() {
	for _, s := range o.servers {
		s.Return()
	}
}

// release closes the addresses; calls go on until close.
func (o *ops) release() {
	for _, s := range o.servers {
		s.Release()
	}
}

func (o *ops) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), opsCloseTime)
	defer cancel()
	var errs []error
	for _, s := range o.servers {
		if err := s.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err) // who still downloads a profile now is cut off, which is no failure
		}
	}
	return errors.Join(errs...)
}
