// SPDX-License-Identifier: Apache-2.0

package l7

import (
	"errors"
	"io"
	"os"

	"github.com/weirlb/weir/internal/http1"
	"github.com/weirlb/weir/internal/http2"
	"github.com/weirlb/weir/internal/message"
	"github.com/weirlb/weir/internal/upstream"
	"github.com/weirlb/weir/pool"
)

// Fault says whose fault a failure is.
type Fault uint8

// The parties.
const (
	FaultNone Fault = iota
	FaultClient
	FaultWeir
	FaultBackend
)

// Phase says how far the exchange had come.
type Phase uint8

// The phases, in order.
const (
	PhaseAdmit   Phase = iota // routing and limits
	PhaseBody                 // taking the client's content
	PhaseQueue                // waiting for a slot
	PhaseConnect              // reaching the backend
	PhaseSend                 // writing the request
	PhaseAwait                // waiting for the answer's head
	PhaseRelay                // passing the answer's content on
	PhaseTunnel               // after an upgrade
)

// Failure is the one type for what ends an exchange or an attempt badly. The
// zero value is success. Status code, retry decision, health outcome, log
// reason and metric label are functions of it.
type Failure struct {
	Fault      Fault
	Phase      Phase
	Reason     message.Reason
	Sent       bool             // a byte of the request reached the backend in this attempt
	Stale      bool             // a kept connection died before a byte of an answer
	Replayable bool             // method and content allow another attempt
	Kind       pool.OutcomeKind // what health makes of the attempt
	Code       int              // status where it is not the reason's own; 0 otherwise
	Detail     string           // a few words for the log
	Err        error            // the cause, where there is one
	noRetry    bool             // a weir behind this one said so
	overtaken  bool             // a hedge answered first
	missed     bool             // a gRPC call that the backend had whole ended without its word: judged as an answer of 500
}

// failed reports that there is a failure.
func (f *Failure) failed() bool { return f.Reason != message.OK }

// status is what weir answers with.
func (f *Failure) status() int {
	if f.Code != 0 {
		return f.Code
	}
	return f.Reason.Status()
}

// retry is the failure as the pool's retry rules see it.
func (f *Failure) retry() pool.Failure {
	kind := f.Kind
	if f.Reason == message.DrainCut {
		kind = pool.Reset // for the request it is one, whoever's doing it was
	}
	return pool.Failure{Kind: kind, Sent: f.Sent, Stale: f.Stale, Replayable: f.Replayable, NoRetry: f.noRetry}
}

// retriable reports that another attempt may be asked for at all: what the
// client did, and what has begun to be answered, is final.
func (f *Failure) retriable() bool {
	return f.Phase >= PhaseConnect && f.Phase <= PhaseAwait && f.Fault != FaultClient
}

// shortage refuses what would take more memory than there is. It is for no other
// attempt, so it has no phase of one.
func shortage() Failure {
	return Failure{Fault: FaultWeir, Reason: message.LocalMemory, Kind: pool.LocalFault, Detail: "no memory left for further requests"}
}

func clientGone(p Phase, err error) Failure {
	return Failure{Fault: FaultClient, Phase: p, Reason: message.ClientAbort, Kind: pool.Canceled, Err: err}
}

// drainCut is the end of what was in flight on a backend when the deadline of
// its drain passed: no fault of the backend's.
func drainCut(p Phase, err error) Failure {
	return Failure{Fault: FaultWeir, Phase: p, Reason: message.DrainCut, Kind: pool.Canceled, Detail: "deadline of the backend's drain", Err: err}
}

// refused turns a pool's refusal into a failure.
func refused(r pool.Refusal) Failure {
	f := Failure{Fault: FaultWeir, Phase: PhaseQueue}
	switch r {
	case pool.AllBroken:
		f.Reason = message.AllBroken
	case pool.Full, pool.QueueFull:
		f.Reason = message.QueueFull
	case pool.QueueTimeout:
		f.Reason = message.QueueTimeout
	case pool.Shed:
		f.Reason = message.Shed
	case pool.Aborted:
		return clientGone(PhaseQueue, nil)
	default:
		f.Reason = message.NoBackend
	}
	return f
}

// dialFailure turns upstream's error into a failure.
func dialFailure(err error) Failure {
	f := Failure{Fault: FaultBackend, Phase: PhaseConnect, Err: err}
	f.Reason, f.Kind = upstream.OutcomeOf(err)
	var d *upstream.DialError
	if !errors.As(err, &d) {
		return f
	}
	switch d.Kind {
	case upstream.Refused, upstream.Unreachable, upstream.Timeout: // the reason says it all
	case upstream.DrainOver:
		return drainCut(PhaseConnect, err)
	case upstream.Canceled:
		return clientGone(PhaseConnect, err)
	default:
		f.Detail = d.Err.Error()
		if f.Kind == pool.LocalFault {
			f.Fault = FaultWeir
		}
	}
	return f
}

// readFailure turns an error of Downstream.ReadBody into a failure. What is no
// word of the codec about the client's bytes means that the client is gone.
func readFailure(err error) Failure {
	var h *http1.Error
	if errors.As(err, &h) {
		return Failure{Fault: FaultClient, Phase: PhaseBody, Reason: h.Reason, Code: h.Code, Detail: h.Detail, Kind: pool.ClientFault, Err: err}
	}
	if isTimeout(err) {
		return Failure{Fault: FaultClient, Phase: PhaseBody, Reason: message.BodyTimeout, Kind: pool.ClientFault, Err: err}
	}
	return clientGone(PhaseBody, err)
}

// writeFailure turns an error of writing to the client into a failure.
func writeFailure(p Phase, err error) Failure {
	var h *http1.Error
	f := clientGone(p, err)
	if errors.As(err, &h) && h.Reason == message.WriteTimeout || isTimeout(err) {
		f.Reason, f.Kind = message.WriteTimeout, pool.ClientFault
	}
	return f
}

// upstreamFailure turns an error of reading from or writing to a backend into a
// failure. started says that a byte of an answer had come: then a retry is still
// possible, but what died was no stale connection.
func upstreamFailure(p Phase, err error, started bool) Failure {
	f := Failure{Fault: FaultBackend, Phase: p, Reason: message.ResetBeforeResponse, Kind: pool.Reset, Err: err}
	var h *http1.Error
	switch {
	case errors.As(err, &h):
		f.Reason, f.Detail = h.Reason, h.Detail
		if h.Reason == message.UpgradeRefused {
			f.Kind = pool.Canceled // it was not asked
		} else if h.Reason != message.ResetBeforeResponse && h.Reason != message.ResetMidResponse {
			f.Reason, f.Kind = message.BadResponse, pool.Malformed
		}
	case isTimeout(err):
		f.Reason, f.Kind = message.StreamIdleTimeout, pool.ResponseTimeout
	case errors.Is(err, http2.ErrSilent) && p < PhaseRelay:
		f.Reason, f.Detail = message.Unreachable, "the backend answers no PING"
	case errors.Is(err, http2.ErrNoMemory):
		f = Failure{Fault: FaultWeir, Phase: p, Reason: message.LocalMemory, Kind: pool.LocalFault, Detail: "no memory left for content", Err: err}
	case p >= PhaseRelay || started:
		f.Reason = message.ResetMidResponse
	}
	return f
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isEnd reports the end of content; a torn one is io.ErrUnexpectedEOF or the
// codec's own error. An error that only wraps io.EOF is such a one.
func isEnd(err error) bool { return err == io.EOF } //nolint:errorlint // see above
