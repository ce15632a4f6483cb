// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

const (
	maxConnections = 32 // per address: of the reserve of descriptors (S17)
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 60 * time.Second
	maxHeader      = 16 << 10
	maxProfile     = 5 * time.Minute
)

// Options configures the admin address.
type Options struct {
	Bind       string       // host:port or unix:/path
	Listener   net.Listener // the socket of Bind, the server's to close; nil: the server binds it
	TokenFile  string       // required unless Bind is loopback or a socket file
	Hosts      []string     // further names under which the address may be reached
	Controller Controller
	Metrics    http.Handler
	Logger     *slog.Logger // nil: slog.Default()
}

// StatusOptions configures the read-only status address.
type StatusOptions struct {
	Bind       string
	Listener   net.Listener // as in Options
	Controller Controller
	Metrics    http.Handler
	Logger     *slog.Logger
}

// Server serves one address. Close ends it.
type Server struct {
	listener net.Listener
	http     *http.Server
	start    sync.Once
	served   chan struct{} // closed when Serve has returned
	cleanup  func()        // removes the socket file
	feeds    *followers
}

// Listen binds the admin address; everything that can fail fails here. Serving
// begins with Start.
func Listen(opt Options) (*Server, error) {
	token := ""
	if opt.TokenFile != "" {
		var err error
		if token, err = readToken(opt.TokenFile); err != nil {
			return nil, fmt.Errorf("admin: %w", err)
		}
	}
	if token == "" && !strings.HasPrefix(opt.Bind, "unix:") && !loopback(opt.Bind) {
		return nil, fmt.Errorf("admin: %s can be reached from other hosts: give admin.token_file, or bind 127.0.0.1 or unix:/path", opt.Bind)
	}
	g := newGuard(opt.Bind, opt.Hosts, token)
	mux := http.NewServeMux()
	api{opt.Controller}.register(mux)
	api{opt.Controller}.registerConfig(mux, g.profiling())
	api{opt.Controller}.registerExplain(mux)
	api{opt.Controller}.registerSessions(mux)
	registerUpgrade(mux, opt.Controller, g.profiling())
	feeds := new(followers)
	closing := registerFeed(mux, opt.Controller, feeds)
	registerHealth(mux, opt.Controller, opt.Metrics)
	registerUI(mux)
	registerPprof(mux, g)
	registerDump(mux, opt.Controller, g.profiling())
	s, err := listen("admin", opt.Bind, opt.Listener, g.wrap(mux), opt.Logger)
	if err == nil {
		s.feeds = feeds
		s.http.RegisterOnShutdown(closing)
	}
	return s, err
}

// ListenStatus binds the status address: /livez, /readyz and /metrics, for
// whoever can reach it.
func ListenStatus(opt StatusOptions) (*Server, error) {
	mux := http.NewServeMux()
	registerHealth(mux, opt.Controller, opt.Metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, CodeNotFound, "here are /livez, /readyz and /metrics")
	})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		if !safe(r.Method) {
			w.Header().Set("Allow", "GET, HEAD")
			problem(w, http.StatusMethodNotAllowed, CodeBadMethod, "this address is read-only")
			return
		}
		mux.ServeHTTP(w, r)
	})
	return listen("status", opt.Bind, opt.Listener, h, opt.Logger)
}

// network keeps 0.0.0.0 to IPv4: "tcp" would make it [::], open to both.
func network(bind string) string {
	host, _, err := net.SplitHostPort(bind)
	if err != nil {
		return "tcp"
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is4() {
		return "tcp4"
	}
	return "tcp"
}

func loopback(bind string) bool {
	host, _, err := net.SplitHostPort(bind)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func listen(what, bind string, bound net.Listener, h http.Handler, log *slog.Logger) (*Server, error) {
	s := &Server{served: make(chan struct{}), cleanup: func() {}, feeds: new(followers)}
	var err error
	if bound != nil {
		s.listener = bound
	} else if path, ok := strings.CutPrefix(bind, "unix:"); ok {
		s.listener, s.cleanup, err = listenUnix(path)
	} else {
		lc := net.ListenConfig{}
		lc.SetMultipathTCP(false)
		s.listener, err = lc.Listen(context.Background(), network(bind), bind)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: cannot bind %s: %w", what, bind, err)
	}
	if log == nil {
		log = slog.Default()
	}
	s.http = &http.Server{
		Handler:           bounded(recovering(h, log)),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// bounded sets the deadlines of one request. They are not the server's because
// a profile takes as long as was asked for.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		write := writeTimeout
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			write += maxProfile
		}
		now := time.Now()
		if err := errors.Join(c.SetReadDeadline(now.Add(bodyTimeout)), c.SetWriteDeadline(now.Add(write))); err != nil {
			problem(w, http.StatusInternalServerError, CodeInternal, err.Error())
			return
		}
		h.ServeHTTP(w, r)
	})
}

// recovering tells of a panic at a level that is seen: net/http recovers it as
// well, but says so where it says that a client has gone.
func recovering(h http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if err, ok := v.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				log.Error("defect of weir", "where", "admin", "path", r.URL.Path, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler) // what was written already may be half an answer
		}()
		h.ServeHTTP(w, r)
	})
}

// Addr returns where the server is bound.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Start begins to serve; further calls do nothing.
func (s *Server) Start() {
	s.start.Do(func() {
		go func() {
			defer close(s.served)
			// Its error is ErrServerClosed, or the listener's end, which Close brings.
			_ = s.http.Serve(netutil.LimitListener(s.listener, maxConnections))
		}()
	})
}

// Close stops serving: requests in progress may finish until ctx ends, then
// they are cut. It returns when nothing is left.
func (s *Server) Close(ctx context.Context) error {
	s.start.Do(func() { close(s.served) }) // never started
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	// A server that never served does not know its listener.
	if cerr := s.listener.Close(); cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	<-s.served
	s.cleanup()
	if err != nil {
		return fmt.Errorf("admin: closing %v: %w", s.Addr(), err)
	}
	return nil
}

// registerHealth serves what orchestrators ask for.
func registerHealth(mux *http.ServeMux, ctl Controller, metrics http.Handler) {
	mux.Handle("/livez", only(func(w http.ResponseWriter, _ *http.Request) {
		plain(w, http.StatusOK, "ok\n")
	}, http.MethodGet))
	mux.Handle("/readyz", only(func(w http.ResponseWriter, r *http.Request) {
		var pools []string
		for _, v := range r.URL.Query()["pools"] {
			for name := range strings.SplitSeq(v, ",") {
				if name = strings.TrimSpace(name); name != "" {
					pools = append(pools, name)
				}
			}
		}
		if why := ctl.NotReady(pools); len(why) > 0 {
			plain(w, http.StatusServiceUnavailable, strings.Join(why, "\n")+"\n")
			return
		}
		plain(w, http.StatusOK, "ok\n")
	}, http.MethodGet))
	if metrics != nil {
		mux.Handle("/metrics", only(metrics.ServeHTTP, http.MethodGet))
	}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may be gone; nobody else to tell
}

// registerPprof serves profiles where a token or the socket's mode guards them.
func registerPprof(mux *http.ServeMux, g *guard) {
	if !g.profiling() {
		mux.HandleFunc("/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
			problem(w, http.StatusForbidden, CodeForbidden, "profiles show memory: they need admin.token_file, or an admin address unix:/path")
		})
		return
	}
	mux.Handle("/debug/pprof/", only(pprof.Index, http.MethodGet))
	mux.Handle("/debug/pprof/cmdline", only(pprof.Cmdline, http.MethodGet))
	mux.Handle("/debug/pprof/profile", only(capped(pprof.Profile), http.MethodGet))
	mux.Handle("/debug/pprof/symbol", only(pprof.Symbol, http.MethodGet))
	mux.Handle("/debug/pprof/trace", only(capped(pprof.Trace), http.MethodGet))
}

// capped refuses profiles longer than the write deadline allows.
func capped(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s := r.URL.Query().Get("seconds"); s != "" {
			if n, err := strconv.ParseFloat(s, 64); err != nil || !(n > 0 && n <= maxProfile.Seconds()) {
				problem(w, http.StatusBadRequest, CodeBadBody, fmt.Sprintf("seconds must lie above 0 and at most at %v", maxProfile.Seconds()))
				return
			}
		}
		h(w, r)
	}
}
