// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Client talks to a running weir's admin address. It is safe for concurrent
// use; Close releases its idle connections.
type Client struct {
	where string // as the user wrote it
	base  string
	token string
	http  *http.Client
	trans *http.Transport
}

// ClientOptions configures NewClient.
type ClientOptions struct {
	Address   string        // host:port, http://host:port or unix:/path
	TokenFile string        // empty: none
	Timeout   time.Duration // of one call; 0: 10 s
}

// NotRunningError says that nobody answers at the address.
type NotRunningError struct {
	Address string
	Err     error
}

// Error implements error.
func (e *NotRunningError) Error() string {
	return fmt.Sprintf("weir is not running at %s: start it or give --admin, or WEIR_ADMIN in the environment", e.Address)
}

// Unwrap returns the cause.
func (e *NotRunningError) Unwrap() error { return e.Err }

// NewClient returns a client. It does not connect yet.
func NewClient(opt ClientOptions) (*Client, error) {
	c := &Client{where: opt.Address}
	if opt.TokenFile != "" {
		var err error
		if c.token, err = readToken(opt.TokenFile); err != nil {
			return nil, err
		}
	}
	// No Proxy: the admin address is near, and a token is not for a proxy.
	c.trans = &http.Transport{MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second}
	c.http = &http.Client{Transport: c.trans, Timeout: opt.Timeout}
	if c.http.Timeout == 0 {
		c.http.Timeout = 10 * time.Second
	}
	if path, ok := strings.CutPrefix(opt.Address, "unix:"); ok {
		c.base = "http://weir"
		c.trans.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		return c, nil
	}
	rest, _ := strings.CutPrefix(opt.Address, "http://")
	rest = strings.TrimSuffix(rest, "/")
	host, port, err := net.SplitHostPort(rest)
	if err != nil || port == "" {
		return nil, fmt.Errorf("admin address %q: use host:port or unix:/path", opt.Address)
	}
	if host == "" {
		rest = net.JoinHostPort("127.0.0.1", port)
	}
	c.base = "http://" + rest
	return c, nil
}

// Close releases idle connections.
func (c *Client) Close() { c.trans.CloseIdleConnections() }

// Status asks what is running.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.do(ctx, http.MethodGet, "/api/v1/status", nil, &s)
	return s, err
}

// Pools asks for every pool with its backends.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	var out struct {
		Pools []Pool `json:"pools"`
	}
	err := c.do(ctx, http.MethodGet, "/api/v1/pools", nil, &out)
	return out.Pools, err
}

// Pool asks for one pool.
func (c *Client) Pool(ctx context.Context, name string) (p Pool, err error) {
	err = c.do(ctx, http.MethodGet, "/api/v1/pools/"+url.PathEscape(name), nil, &p)
	return p, err
}

// Backend asks for one backend.
func (c *Client) Backend(ctx context.Context, pool, id string) (b Backend, err error) {
	err = c.do(ctx, http.MethodGet, backendPath(pool, id), nil, &b)
	return b, err
}

// Patch changes what the operator says about a backend and returns it as it is
// then.
func (c *Client) Patch(ctx context.Context, pool, id string, p Patch) (b Backend, err error) {
	body, err := p.marshal()
	if err != nil {
		return b, err
	}
	err = c.do(ctx, http.MethodPatch, backendPath(pool, id), body, &b)
	return b, err
}

func backendPath(pool, id string) string {
	return "/api/v1/pools/" + url.PathEscape(pool) + "/backends/" + url.PathEscape(id)
}

// maxAnswer bounds an answer: 10,000 backends take about 5 MB.
const maxAnswer = 64 << 20

// do makes one call. Errors are for people: *NotRunningError, *Problem (wrapped
// where more can be said), or what went wrong in words.
func (c *Client) do(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("admin address %q: %w", c.where, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("weir at %s broke off its answer: %w", c.where, err)
	}
	typ, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated) && typ == "application/json":
		if err := json.Unmarshal(text, out); err != nil {
			return fmt.Errorf("weir at %s answered with something else than expected: %w", c.where, err)
		}
		return nil
	case typ == "application/problem+json":
		p := new(Problem)
		if err := json.Unmarshal(text, p); err != nil {
			return fmt.Errorf("weir at %s answered %s", c.where, resp.Status)
		}
		if p.Code == CodeUnauthorized {
			if c.token == "" {
				return fmt.Errorf("weir at %s asks for a token: give --token-file: %w", c.where, p)
			}
			return fmt.Errorf("weir at %s does not accept the token of --token-file: %w", c.where, p)
		}
		return p
	default:
		return fmt.Errorf("what answers at %s (%s) is not weir's admin address", c.where, resp.Status)
	}
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var t net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return &NotRunningError{Address: c.where, Err: err}
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("no permission for %s: run as the user that runs weir", c.where)
	case errors.As(err, &t) && t.Timeout():
		return fmt.Errorf("weir at %s did not answer within %v", c.where, c.http.Timeout)
	default:
		return fmt.Errorf("cannot reach weir at %s: %w", c.where, err)
	}
}
