// SPDX-License-Identifier: Apache-2.0

package http1

// Reasons that several vectors share.
const (
	twoFramings  = "Content-Length beside Transfer-Encoding is refused: parsers differ about which counts"
	manyLengths  = "a repeated Content-Length is refused even where the values agree"
	otherCoding  = "only exactly one coding, chunked, is understood; anything else is refused, not read until close"
	chunkSpace   = "white space in a chunk-size line is refused: parsers differ about it"
	chunkExts    = "chunk extensions must follow the grammar"
	afterClose   = "bytes behind a message that closes the connection are never read, so there is nothing to refuse"
	otherProto   = "another protocol is not HTTP"
	blankBefore  = "a blank line before a status line is a stray byte: the connection is not used again"
	fragment     = "a fragment does not belong in a request-target: some servers cut there, others route with it"
	obsFold      = "obs-fold is refused"
	manySpaces   = "exactly one space separates the parts of the first line"
	notAResponse = "the vector carries header lines alone; here a head begins with its status line"
)

// deviations lists the vectors that are judged differently here, with why.
var deviations = map[string]string{
	"hyper/request/3 transfer-encoding: chunked":                         otherCoding,
	"hyper/request/4 transfer-encoding: chunked":                         otherCoding,
	"hyper/request/6 transfer-encoding and content-length = chunked":     twoFramings,
	"hyper/request/7 transfer-encoding and content-length = chunked":     twoFramings,
	"hyper/request/8 transfer-encoding and content-length = chunked":     twoFramings,
	"hyper/request/9 transfer-encoding and content-length = chunked":     twoFramings,
	"hyper/request/10 multiple content-lengths of same value are fine":   manyLengths,
	"hyper/response/22 content-length":                                   manyLengths,
	"hyper/response/26 transfer-encoding not-chunked is close-delimited": otherCoding,
	"hyper/response/27 transfer-encoding and content-length = chunked":   twoFramings,
	"hyper/response/33 101 upgrade not supported yet":                    "a 101 must name what it switches to",
	"hyper/chunk-size/47": chunkSpace,
	"hyper/chunk-size/57": chunkExts,
	"hyper/chunk-size/59": chunkExts,
	"hyper/chunk-size/60": chunkExts,
	"hyper/chunk-size/61": chunkSpace,
	"hyper/chunk-size/62": chunkSpace,
	"hyper/chunk-size/63": chunkSpace,

	"llhttp/connection/Setting flag / No restart when keep-alive is off (1.0)":                          afterClose,
	"llhttp/connection/Setting flag / Resetting flags when keep-alive is off (1.0, lenient)":            afterClose,
	"llhttp/connection/HTTP/1.1 with keep-alive disabled and 204 status":                                afterClose,
	"llhttp/connection/HTTP/1.1 with keep-alive disabled, content-length (lenient)":                     afterClose,
	"llhttp/connection/HTTP/1.1 with keep-alive disabled, content-length":                               afterClose,
	"llhttp/connection/HTTP/1.1 with keep-alive disabled and 204 status (lenient)":                      afterClose,
	"llhttp/connection/upgrade / Upgrade POST request":                                                  "only a WebSocket is tunnelled; what follows the content is read as the next request and refused",
	"llhttp/method/CONNECT request / SOURCE request with ICE":                                           otherProto,
	"llhttp/method/CONNECT request / OPTIONS request with RTSP":                                         otherProto,
	"llhttp/method/CONNECT request / ANNOUNCE request with RTSP":                                        otherProto,
	"llhttp/method/CONNECT request / PRI request HTTP2":                                                 "the HTTP/2 preface is refused as soon as its head is complete: the asterisk belongs to OPTIONS",
	"llhttp/sample/RTSP response":                                                                       otherProto,
	"llhttp/sample/ICE response":                                                                        otherProto,
	"llhttp/sample/HTTP version 0.9":                                                                    otherProto,
	"llhttp/sample/No HTTP version":                                                                     "HTTP/0.9 has no framing to forward",
	"llhttp/transfer-encoding/POST with `chunked` as last transfer-encoding":                            fragment,
	"llhttp/transfer-encoding/POST with `chunked` as last transfer-encoding (multiple headers)":         fragment,
	"llhttp/uri/Fragment in URI":                                                                        fragment,
	"llhttp/connection/HTTP 304 with Content-Length":                                                    blankBefore,
	"llhttp/connection/HTTP 100 first, then 400":                                                        blankBefore,
	"llhttp/pipelining/ #2":                                                                             blankBefore,
	"llhttp/sample/Google 301":                                                                          "the vector's content is longer than its Content-Length: the rest is no status line",
	"llhttp/sample/Response starting with CRLF":                                                         blankBefore,
	"llhttp/transfer-encoding/chunked` before other transfer-encoding":                                  otherCoding,
	"llhttp/transfer-encoding/multiple transfer-encoding where chunked is not the last one":             otherCoding,
	"llhttp/transfer-encoding/chunkedchunked` transfer-encoding does not enable chunked enc" + "onding": otherCoding,

	"picohttpparser/parse multiline":                                              obsFold,
	"picohttpparser/parse multiline #2":                                           obsFold,
	"picohttpparser/accept multiple spaces between tokens":                        manySpaces,
	"picohttpparser/accept multiple spaces between tokens #2":                     manySpaces,
	"picohttpparser/incomplete 11":                                                "the vector ends its status line with a bare LF, which is refused at once",
	"picohttpparser/simple #2 #3":                                                 notAResponse,
	"ats/good_request_after_bad/15 Characters that are strict but not case 2 bad": "the same bytes as number 12, which is to be refused; both cannot hold",
	"picohttpparser/slowloris":                                                    notAResponse,
	"picohttpparser/partial #2 #3":                                                notAResponse,
}
