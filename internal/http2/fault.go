// SPDX-License-Identifier: Apache-2.0

package http2

import (
	"errors"
	"strconv"
)

// Code says in RST_STREAM and GOAWAY why (RFC 9113 section 7).
type Code uint32

// The codes.
const (
	CodeNo                 Code = 0x0
	CodeProtocol           Code = 0x1
	CodeInternal           Code = 0x2
	CodeFlowControl        Code = 0x3
	CodeSettingsTimeout    Code = 0x4
	CodeStreamClosed       Code = 0x5
	CodeFrameSize          Code = 0x6
	CodeRefusedStream      Code = 0x7
	CodeCancel             Code = 0x8
	CodeCompression        Code = 0x9
	CodeConnect            Code = 0xa
	CodeEnhanceYourCalm    Code = 0xb
	CodeInadequateSecurity Code = 0xc
	CodeHTTP11Required     Code = 0xd
)

var codeNames = [...]string{
	"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED", "FRAME_SIZE_ERROR",
	"REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
}

// String returns the RFC's name.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code " + strconv.FormatUint(uint64(c), 10)
}

// ConnError ends a connection: GOAWAY with the code, then the end.
type ConnError struct {
	Code   Code
	Detail string // for the log and the frame's debug data
	Calm   Cause  // what there was too much of, with CodeEnhanceYourCalm
}

// Error implements error.
func (e *ConnError) Error() string { return "http2: " + e.Detail }

func protocolError(detail string) *ConnError { return &ConnError{Code: CodeProtocol, Detail: detail} }

var (
	errReset  = errors.New("http2: the stream was reset")
	errClosed = errors.New("http2: the connection is over")
	errOrder  = errors.New("http2: message written out of order")
	// errMismatch is content that does not fit what the head announced.
	errMismatch = errors.New("http2: content does not match the announced length")
)
