// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strconv"
	"time"

	"github.com/weirlb/weir/balance"
	"github.com/weirlb/weir/pool"
)

// Pattern is how requests of a rate are spread over time.
type Pattern uint8

// The patterns.
const (
	Poisson Pattern = iota // at random, independent of each other
	Even                   // on the beat
	Bursts                 // Burst at once, the bursts at random
	Waves                  // at random with a rate that changes at random: MMPP with two states
)

// Traffic is one kind of clients. Exactly one of Rate, Users and Replay says when
// requests arrive.
type Traffic struct {
	Name string      // "": traffic-1, traffic-2, ...
	To   []*Balancer // each request goes to one of them at random; at least one

	// An open loop: clients that do not wait for each other.
	Rate    float64 // requests per second
	Pattern Pattern
	Burst   int     // requests of one of Bursts; 0 counts as 50
	Wave    float64 // of Waves: the busy state's rate over the mean one; 0 counts as 1.8, at most 2
	// WaveFor is the mean length of each state of Waves; 0 counts as 1s. Both last
	// equally long on average, so the calm state has the rate (2 - Wave) x Rate.
	WaveFor time.Duration
	// A closed loop: so many users, each of whom thinks, asks and waits for the
	// answer.
	Users int
	Think Dist // nil: a second, exponentially distributed
	// What was seen once, in order of At.
	Replay []Arrival

	From  time.Duration // the first may arrive then
	Until time.Duration // none arrives from then on; 0: no end
	Limit int           // so many in all; 0: no limit

	Size      func(*Stream) float64 // times the servers' service time; nil: 1
	Keys      Keys
	Addresses int     // client addresses, as health counts them; 0 counts as 1000
	Unsafe    float64 // part of the requests that may not be sent twice
	Priority  balance.Priority

	Timeout time.Duration // after which a client goes away; 0: never
	Retries int           // of a client after a failure, beside the balancers' own
	Backoff time.Duration // before the first of them: full jitter, doubling
}

// Arrival is one request of a replay.
type Arrival struct {
	At     time.Duration // from the beginning of the replay
	Size   float64       // 0 counts as 1
	Work   time.Duration // instead of the server's service time; 0: that
	Key    uint64        // meaningful when HasKey
	HasKey bool
}

// Heavy is a Size: one part of the requests is factor times larger than the
// others.
func Heavy(part, factor float64) func(*Stream) float64 {
	return func(s *Stream) float64 {
		if s.Float64() < part {
			return factor
		}
		return 1
	}
}

// Source is traffic that has been added to a world.
type Source struct {
	w       *World
	t       Traffic
	timer   timer
	wave    timer
	dice    *Stream
	zipf    *zipf
	salt    uint64
	factor  float64 // of the rate, by waves
	left    float64 // until the next arrival, in units of 1 / rate
	since   balance.Instant
	burst   int // still to come of a burst
	started int
	ended   int
	begun   bool
	ending  bool // Stop is planned
	closed  bool // nobody arrives any more
	over    bool // closed, or without an end
}

// AddTraffic adds clients. It panics when there is nowhere to go: a mistake in
// the scenario.
func (w *World) AddTraffic(t Traffic) *Source {
	if len(t.To) == 0 {
		panic("sim: traffic without a balancer")
	}
	if t.Name == "" {
		t.Name = "traffic-" + strconv.Itoa(len(w.traffic)+1)
	}
	if t.Burst <= 0 {
		t.Burst = 50
	}
	if t.Wave <= 0 {
		t.Wave = 1.8
	}
	t.Wave = min(t.Wave, 2)
	if t.WaveFor <= 0 {
		t.WaveFor = time.Second
	}
	if t.Think == nil {
		t.Think = Exponential(time.Second)
	}
	if t.Addresses <= 0 {
		t.Addresses = 1000
	}
	s := &Source{w: w, t: t, factor: 1, dice: w.Stream("arrivals " + t.Name), salt: w.Stream("requests " + t.Name).Uint64(), zipf: newZipf(t.Keys)}
	s.timer.who, s.wave.who = s, s
	s.timer.code, s.wave.code = sourceArrival, sourceWave
	s.over = t.Limit == 0 && t.Until == 0 && t.Replay == nil
	w.traffic = append(w.traffic, s)
	w.agenda.plan(&s.timer, max(balance.Instant(t.From), w.now))
	return s
}

// Name returns the traffic's name.
func (s *Source) Name() string { return s.t.Name }

// Started returns how many requests have arrived, Ended how many have ended.
func (s *Source) Started() int { return s.started }

// Ended returns how many requests have ended.
func (s *Source) Ended() int { return s.ended }

// SetRate changes the rate of an open loop from now on; 0 stops it.
func (s *Source) SetRate(perSecond float64) {
	s.pass()
	s.t.Rate = max(perSecond, 0)
	if s.begun {
		s.next()
	}
}

// Stop lets nobody arrive any more.
func (s *Source) Stop() {
	s.closed, s.over = true, true
	s.w.agenda.cancel(&s.timer)
	s.w.agenda.cancel(&s.wave)
}

const (
	sourceArrival = iota
	sourceWave
)

func (s *Source) fire(code uint8) {
	switch {
	case code == sourceWave:
		s.pass()
		if s.factor > 1 {
			s.factor = 2 - s.t.Wave
		} else {
			s.factor = s.t.Wave
		}
		s.plan(&s.wave, scaled(s.t.WaveFor, s.dice.Exp()))
		s.next()
	case !s.begun:
		s.begin()
	case s.t.Replay != nil:
		a := s.t.Replay[s.started]
		s.arrive(&a)
		s.nextReplay()
	default:
		s.arrive(nil)
		s.draw()
		s.next()
	}
}

func (s *Source) plan(t *timer, d time.Duration) { s.w.agenda.plan(t, s.w.now.Add(d)) }

// begin is the start of the traffic.
func (s *Source) begin() {
	s.begun = true
	switch {
	case s.t.Replay != nil:
		s.nextReplay()
	case s.t.Users > 0:
		for range s.t.Users {
			u := &user{s: s}
			u.who = u
			s.w.agenda.plan(&u.timer, s.w.now.Add(s.t.Think.Sample(s.dice)))
		}
	default:
		if s.t.Pattern == Waves {
			s.factor = s.t.Wave
			s.plan(&s.wave, scaled(s.t.WaveFor, s.dice.Exp()))
		}
		s.draw()
		s.since = s.w.now
		s.next()
	}
}

// ends reports whether nobody arrives any more.
func (s *Source) ends() bool {
	if s.closed || s.t.Limit > 0 && s.started >= s.t.Limit || s.t.Until > 0 && s.w.Now() >= s.t.Until {
		s.Stop()
	}
	return s.closed
}

// draw draws the time to the next arrival, in units of 1 / rate.
func (s *Source) draw() {
	switch s.t.Pattern {
	case Even:
		s.left = 1
	case Bursts:
		if s.burst > 0 {
			s.burst--
			s.left = 0
			return
		}
		s.burst = s.t.Burst - 1
		s.left = float64(s.t.Burst) * s.dice.Exp()
	case Poisson, Waves:
		s.left = s.dice.Exp()
	}
}

// pass takes off what has passed at the present rate.
func (s *Source) pass() {
	s.left = max(s.left-s.w.now.Sub(s.since).Seconds()*s.t.Rate*s.factor, 0)
	s.since = s.w.now
}

// next plans the next arrival.
func (s *Source) next() {
	s.since = s.w.now
	if s.t.Replay != nil || s.t.Users > 0 || s.ends() {
		return
	}
	rate := s.t.Rate * s.factor
	if rate <= 0 {
		s.w.agenda.cancel(&s.timer)
		return
	}
	at := s.w.now.Add(scaled(time.Second, s.left/rate))
	if s.t.Until > 0 && at >= balance.Instant(s.t.Until) {
		s.w.agenda.cancel(&s.timer)
		if !s.ending {
			s.ending = true
			s.w.At(s.t.Until, s.Stop)
		}
		return
	}
	s.w.agenda.plan(&s.timer, at)
}

func (s *Source) nextReplay() {
	if s.started >= len(s.t.Replay) || s.ends() {
		s.Stop()
		return
	}
	at := balance.Instant(s.t.From + s.t.Replay[s.started].At)
	s.w.agenda.plan(&s.timer, max(at, s.w.now))
}

// user is one of a closed loop.
type user struct {
	timer
	s *Source
}

func (u *user) fire(uint8) {
	if u.s.ends() {
		return
	}
	u.s.arrive(nil).user = u
}

// arrive begins a request.
func (s *Source) arrive(a *Arrival) *request {
	if s.t.Replay == nil && s.ends() {
		return nil
	}
	w := s.w
	q := w.newRequest()
	q.s = s
	s.started++
	w.open++
	dice := &w.arrivalDice
	dice.state = mix(mix(w.seed^uint64(s.started)*gamma) ^ s.salt)
	q.rnd = dice.Uint64()
	q.began = w.now
	q.size = 1
	q.client = 1 + uint64(dice.IntN(s.t.Addresses))
	to := s.t.To[dice.IntN(len(s.t.To))]
	q.unsafe = s.t.Unsafe > 0 && dice.Float64() < s.t.Unsafe
	if s.zipf != nil {
		q.key, q.hasKey = s.zipf.draw(dice), true
	}
	if s.t.Size != nil {
		q.size = max(s.t.Size(dice), 0)
	}
	if a != nil {
		if a.Size > 0 {
			q.size = a.Size
		}
		q.work = a.Work
		if a.HasKey {
			q.key, q.hasKey = a.Key, true
		}
	}
	q.to = to
	q.send()
	return q
}

// request is one request of a client, with the client's own retries.
type request struct {
	timer
	s      *Source
	user   *user
	out    call
	to     *Balancer
	began  balance.Instant
	rnd    uint64
	key    uint64
	hasKey bool
	client uint64
	size   float64
	work   time.Duration
	unsafe bool
	tries  int
	sum    int // attempts on servers, over all tries
	queued time.Duration
}

const (
	requestTimeout = iota
	requestAgain
)

func (w *World) newRequest() *request {
	if n := len(w.spareRequests); n > 0 {
		q := w.spareRequests[n-1]
		w.spareRequests = w.spareRequests[:n-1]
		return q
	}
	q := &request{}
	q.who = q
	return q
}

func (q *request) send() {
	q.tries++
	q.out = call{
		caller: q, to: q.to, began: q.s.w.now, rnd: q.rnd, try: uint32(q.tries), key: q.key, hasKey: q.hasKey,
		client: q.client, size: q.size, work: q.work, unsafe: q.unsafe, prio: q.s.t.Priority,
	}
	if q.s.t.Timeout > 0 {
		q.code = requestTimeout
		q.s.w.agenda.plan(&q.timer, q.s.w.now.Add(q.s.t.Timeout))
	}
	q.to.serve(&q.out)
}

func (q *request) fire(code uint8) {
	if code == requestAgain {
		q.send()
		return
	}
	var attempts int
	var at *Server
	if x := q.out.within; x != nil {
		attempts = x.attempts
		if x.link != nil {
			at = x.link.server
		}
	}
	q.to.cancel(&q.out)
	q.end(reply{kind: pool.Canceled, reason: "client_timeout", attempts: attempts, server: at})
}

// answered is the balancer's answer.
func (q *request) answered(_ *call, r reply) {
	q.s.w.agenda.cancel(&q.timer)
	q.end(r)
}

// end ends one try, and the request unless the client tries again.
func (q *request) end(r reply) {
	q.sum += r.attempts
	q.queued += r.queued
	s, w := q.s, q.s.w
	if r.failed() && q.tries <= s.t.Retries && !q.unsafe {
		most := float64(s.t.Backoff) * float64(uint64(1)<<min(q.tries-1, 20))
		d := Stream{mix(q.rnd ^ 0xc11e + uint64(q.tries)*gamma)}
		q.code = requestAgain
		w.agenda.plan(&q.timer, w.now.Add(scaled(time.Duration(min(most, float64(time.Hour))), d.Float64())))
		return
	}
	s.ended++
	w.open--
	w.record(q, &r)
	if u := q.user; u != nil && !s.ends() {
		w.agenda.plan(&u.timer, w.now.Add(max(s.t.Think.Sample(s.dice), time.Microsecond)))
	}
	*q = request{timer: timer{who: q}}
	w.spareRequests = append(w.spareRequests, q)
}
