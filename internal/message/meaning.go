// SPDX-License-Identifier: Apache-2.0

package message

// meanings says of each reason what happened, and where to look.
var meanings = [Reasons][2]string{
	OK:                  {"the answer was passed on as the backend gave it", "the backend's own log"},
	ClientAbort:         {"the client closed its connection before the answer was complete", "how long the answers take, and the client's timeout"},
	NoRoute:             {"no route of the listener matches", "weir explain URL says why each route does not"},
	NoBackend:           {"the pool has no backend, or all are drained, disabled or of weight 0", "weir status"},
	AllBroken:           {"health leaves the pool no backend", "weir status, the checks' last errors"},
	ConnLimit:           {"a ceiling on connections was reached", "limits of the listener, the process and the pool"},
	RouteFull:           {"the route has max_requests in flight", "what became slow; the route's max_requests"},
	QueueFull:           {"all slots of the pool are taken, and the queue is full", "more backends, or higher limits"},
	QueueTimeout:        {"no slot of the pool came free in queue_timeout", "more backends, or higher limits"},
	ConnectRefused:      {"the backend's host refused the connection: nothing listens there", "is the process running, on that port?"},
	ConnectTimeout:      {"the backend's host did not answer to the connection attempt", "host down, a firewall that drops, a full accept queue"},
	Unreachable:         {"there is no way to the backend's host", "network, address"},
	TLSFailed:           {"the TLS handshake with the backend failed, or its certificate is not believed", "tls of the pool; the backend's certificate"},
	ResetBeforeResponse: {"the backend closed the connection before it answered", "its log: it crashed, or its keep-alive is shorter than timeouts.keepalive"},
	ResetMidResponse:    {"the backend closed the connection within its answer", "its log"},
	BadResponse:         {"the backend's answer was no HTTP, or ambiguous", "detail says what; is it the right port?"},
	ResponseTimeout:     {"the backend sent no head of an answer within timeouts.response_header", "what became slow there"},
	StreamIdleTimeout:   {"nothing moved for stream_idle, or tunnel_idle", "a longer one for long polls"},
	RequestTimeout:      {"queue, attempts and waiting took longer than the route's timeouts.request", "queue_ms and attempts say what took the time"},
	HeaderTimeout:       {"the client was too slow with the head of its request", "timeouts.header of the listener"},
	BodyTimeout:         {"the client was too slow with the content of its request", "body_min_rate of the listener"},
	WriteTimeout:        {"the client did not take the answer for timeouts.write", "nothing of weir's"},
	BodyTooLarge:        {"the content is larger than http.max_body", "raise it where it is meant"},
	HeaderTooLarge:      {"the head is larger than http.max_header_bytes", "which cookies pile up; raise it where it is meant"},
	URITooLong:          {"the target is longer than is taken", "the client"},
	BadRequest:          {"the request is malformed, or two readers could read it differently", "detail says what"},
	Misdirected:         {"the request is for a name that is not served on its connection", "the client's connection reuse"},
	UpgradeRefused:      {"the backend switched to a protocol that was not asked for", "the backend"},
	RateLimited:         {"the client asked more often than its rate limit allows", "the limit's key and rate"},
	Shed:                {"the pool refuses a part of the requests to protect what is left of it", "weir status: panic, a ramp of the pool, or its adaptive limit"},
	BackendOverloaded:   {"the backend answered 503 and no other could be asked", "more backends"},
	RetryBudgetEmpty:    {"a retry was due and the retry budget was spent", "what fails so often"},
	LocalPorts:          {"this machine has no local port left towards the backend", "keep-alive to the backends; net.ipv4.ip_local_port_range"},
	LocalFiles:          {"this process has no file descriptor left", "RLIMIT_NOFILE"},
	LocalMemory:         {"this machine has no memory left for a socket", "memory"},
	DNSFailed:           {"the backend's name has no address", "the resolver; the name"},
	DrainCut:            {"cut at the deadline of weir's or the backend's drain", "a longer deadline"},
	MaxAge:              {"the connection reached its greatest age", "nothing: the client connects again"},
	DrainClosed:         {"a WebSocket was closed in order for weir's or the backend's drain", "nothing: the client connects again"},
	Rebalanced:          {"a WebSocket or stream was ended because its backend had more than its part of them", "nothing: the client connects again; rebalance of the pool"},
	DeadlineExceeded:    {"the deadline that the gRPC call came with has passed", "what became slow; the client's deadline"},
}

// tunnelMeanings are those of tunnels, where they are others.
var tunnelMeanings = map[Reason][2]string{
	DrainCut:    {"a WebSocket was cut for weir's or the backend's drain: detail says who did not answer the Close frame", "that side's code: an answer to Close takes milliseconds, and no deadline of weir's makes it come"},
	ClientAbort: {"the client's side of a WebSocket broke: reset, or gone without a Close frame", "the client's network; pages that are left do not always close"},
}

// sessionMeanings are those of sessions, of which no byte is read, where they are
// others.
var sessionMeanings = map[Reason][2]string{
	ClientAbort:         {"the client's connection broke: a reset, or no sign of life", "the client, and the network to it"},
	NoRoute:             {"no route of the listener takes the server name that was asked for", "weir explain https://NAME says why each route does not"},
	QueueTimeout:        {"no slot of the pool came free in queue_timeout, and the client's connection was reset", "more backends, or higher limits"},
	ResetBeforeResponse: {"the backend ended the connection before it had sent a byte", "its log: it accepts and hangs up, or crashed"},
	ResetMidResponse:    {"the backend's connection broke within the session", "its log: it crashed, or was restarted; a firewall that forgets quiet connections"},
	StreamIdleTimeout:   {"no byte moved either way for timeouts.idle of the listener", "a longer one, or a sign of life in the protocol itself"},
	HeaderTimeout:       {"the client did not say in timeouts.header which name it wants, or who it is", "clients that wait for the server to speak first; timeouts.header of the listener"},
	BadRequest:          {"the client began with what is not its to send, such as a PROXY header, or with no TLS where TLS is routed", "detail says what; proxy_protocol of the listener"},
	DrainCut:            {"weir ended the session for a drain, a broken backend or its own end: detail says which", "a longer deadline; nothing where clients connect again"},
	MaxAge:              {"the session was open for timeouts.total of the listener", "nothing: the client connects again"},
	Rebalanced:          {"a session was ended because its backend had more than its part of them", "nothing: the client connects again; rebalance of the pool"},
}

// flowMeanings are those of flows of datagrams.
var flowMeanings = map[Reason][2]string{
	ConnLimit:        {"a ceiling on flows was reached, or the flow made room for another before an answer came", "limits of the listener and of the process; weir_flows_evicted_total"},
	ConnectRefused:   {"the backend's host said that nobody has that port (ICMP)", "is the process running, on that port?"},
	ResetMidResponse: {"the backend's host said that nobody has that port any more, after answers", "its log: it crashed, or was restarted"},
	ResponseTimeout:  {"the flow was silent for its time, without an answer", "the backend's log, a firewall that drops; nothing where a protocol has no answers, as syslog"},
	DrainCut:         {"weir ended the flow for a drain, a broken backend or its own end: detail says which", "a longer deadline; nothing where clients send again"},
	MaxAge:           {"the flow was open for timeouts.total of the listener", "nothing: what the client sends next begins another one"},
	Rebalanced:       {"a flow was ended because its backend had more than its part of them", "nothing: what the client sends next begins another one; rebalance of the pool"},
}

// TunnelMeaning is Meaning for a tunnel, where that is another one.
func (r Reason) TunnelMeaning() (what, look string, other bool) { return r.in(tunnelMeanings) }

// SessionMeaning is Meaning for a session, where that is another one.
func (r Reason) SessionMeaning() (what, look string, other bool) { return r.in(sessionMeanings) }

// FlowMeaning is Meaning for a flow of datagrams, where that is another one.
func (r Reason) FlowMeaning() (what, look string, other bool) { return r.in(flowMeanings) }

func (r Reason) in(other map[Reason][2]string) (what, look string, ok bool) {
	m, ok := other[r]
	return m[0], m[1], ok
}

// Meaning says in words what happened, and where an operator looks next.
func (r Reason) Meaning() (what, look string) {
	if r >= Reasons {
		return "", ""
	}
	return meanings[r][0], meanings[r][1]
}
