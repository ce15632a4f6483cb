// SPDX-License-Identifier: Apache-2.0

package logline

import (
	"slices"
	"strings"
)

// Field is a value that a line can show. The zero value is none.
type Field uint8

// The fields. Those up to Sample are the keys of the JSON form.
const (
	None Field = iota
	Time
	Listener
	Route
	Pool
	Backend
	Method
	Host
	Path
	Query
	Proto
	TLS
	Status
	Reason
	GRPCStatus // of a gRPC call, such as UNAVAILABLE
	Sent
	Client
	ProxiedBy // who sent the connection's PROXY header
	RequestID
	Attempts
	Retries
	Redispatches
	Tried
	DurationMS
	QueueMS
	ConnectMS
	FirstByteMS
	BytesIn
	BytesOut
	Reused
	Tunnel
	Sticky // what became of the sticky session
	UserAgent
	Detail
	Truncated
	Sample
	TimeLocal // 30/Nov/2026:09:43:00 +0000
	TimeUnix  // seconds with three decimals
	Request   // method, target and protocol, as the common format has them
	URI       // path, and the query where it is logged
	Scheme    // http or https
	Duration  // seconds with three decimals
	Referer   // without its query unless queries are logged
	User      // weir authenticates nobody: always empty
	TLSVersion
	TLSCipher
	TLSResumed
	SNI            // server name that the client asked for
	ClientCert     // subject of the verified certificate of the client
	ClientCertHash // its SHA-256
	Header         // a field of the request
	fields
)

// names are the words for fields, the JSON form's first. Behind them are those
// that nginx has for the same.
var names = []struct {
	name  string
	field Field
}{
	{"time", Time},
	{"listener", Listener},
	{"route", Route},
	{"pool", Pool},
	{"backend", Backend},
	{"method", Method},
	{"host", Host},
	{"path", Path},
	{"query", Query},
	{"proto", Proto},
	{"tls", TLS},
	{"status", Status},
	{"reason", Reason},
	{"grpc_status", GRPCStatus},
	{"sent", Sent},
	{"client", Client},
	{"proxied_by", ProxiedBy},
	{"request_id", RequestID},
	{"attempts", Attempts},
	{"retries", Retries},
	{"redispatches", Redispatches},
	{"tried", Tried},
	{"duration_ms", DurationMS},
	{"queue_ms", QueueMS},
	{"connect_ms", ConnectMS},
	{"first_byte_ms", FirstByteMS},
	{"bytes_in", BytesIn},
	{"bytes_out", BytesOut},
	{"reused", Reused},
	{"tunnel", Tunnel},
	{"sticky", Sticky},
	{"user_agent", UserAgent},
	{"detail", Detail},
	{"truncated", Truncated},
	{"sample", Sample},
	{"time_local", TimeLocal},
	{"time_unix", TimeUnix},
	{"request", Request},
	{"uri", URI},
	{"scheme", Scheme},
	{"duration", Duration},
	{"referer", Referer},
	{"tls_version", TLSVersion},
	{"tls_cipher", TLSCipher},
	{"tls_resumed", TLSResumed},
	{"sni", SNI},
	{"client_cert", ClientCert},
	{"client_cert_hash", ClientCertHash},

	{"remote_addr", Client},
	{"remote_user", User},
	{"time_iso8601", Time},
	{"msec", TimeUnix},
	{"request_method", Method},
	{"request_uri", URI},
	{"server_protocol", Proto},
	{"args", Query},
	{"query_string", Query},
	{"request_time", Duration},
	{"body_bytes_sent", BytesOut},
	{"upstream_addr", Backend},
	{"http_referer", Referer},
	{"http_user_agent", UserAgent},
	{"http_host", Host},
	{"ssl_protocol", TLSVersion},
	{"ssl_cipher", TLSCipher},
	{"ssl_server_name", SNI},
	{"ssl_client_s_dn", ClientCert},
}

// headerPrefix precedes the name of a request's field, dashes as underscores.
const headerPrefix = "http_"

// Names returns the words that a format can use, in the order of the
// documentation. The prefix http_ with the name of a field of the request is
// not among them.
func Names() []string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, n.name)
	}
	return out
}

// find returns the field of a name, and the name of the request's field if it
// is one.
func find(name string) (f Field, header string) {
	for _, n := range names {
		if n.name == name {
			return n.field, ""
		}
	}
	if rest, ok := strings.CutPrefix(name, headerPrefix); ok && rest != "" {
		return Header, strings.ReplaceAll(rest, "_", "-")
	}
	return None, ""
}

// secret are the fields of a request that hold credentials by their definition.
var secret = []string{
	"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-auth-token", "x-csrf-token",
	"x-amz-security-token", "x-vault-token", "x-forwarded-access-token",
}

// Secret reports whether a field of a request holds credentials, so that its
// value is never logged. Case does not count.
func Secret(header string) bool { return slices.Contains(secret, strings.ToLower(header)) }
