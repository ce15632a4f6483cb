// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// idle opens n clients, each of which has got its first answer when open returns,
// and returns the memory that each costs once they have been quiet for a while.
func idle(p *proxy, open func() (io.Closer, error), n int, quiet time.Duration) (result, error) {
	before, files := p.rss(), p.files()
	clients := make([]io.Closer, 0, n)
	defer func() {
		for _, c := range clients {
			c.Close()
		}
	}()
	for range n {
		c, err := open()
		if err != nil {
			return nil, fmt.Errorf("idle client %d: %w", len(clients)+1, err)
		}
		clients = append(clients, c)
	}
	time.Sleep(quiet)
	after := p.rss()
	return result{"kib_per_client": float64(after-before) / float64(n), "files_per_client": float64(p.files()-files) / float64(n), "rss_mib": float64(after) / 1024, "rss_before_mib": float64(before) / 1024}, nil
}

func dialPlain(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }

func dialTLS(addr string) (net.Conn, error) {
	return tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
}

// http1Client asks once and stays.
func http1Client(c net.Conn, err error) (io.Closer, error) {
	if err != nil {
		return nil, err
	}
	_, err = ask(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200)
	return c, err
}

// http2Client asks once on a stream and stays.
func http2Client(addr string) (io.Closer, error) {
	t := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP2(true)
	cc, err := t.NewClientConn(context.Background(), "https", addr)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodGet, "https://"+addr+"/", nil)
	if err != nil {
		return nil, err
	}
	resp, err := cc.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return nil, err
	}
	return cc, resp.Body.Close()
}

// webSocket opens one, has a byte come back, and stays.
func webSocket(addr string) (io.Closer, error) {
	c, err := dialPlain(addr)
	if err != nil {
		return nil, err
	}
	r, err := ask(c, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", 101)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{0x82, 0x81, 0, 0, 0, 0, 'x'}); err != nil { // a masked message of one byte
		return nil, err
	}
	_, err = io.ReadFull(r, make([]byte, 7))
	return c, err
}

// ask sends a request and reads its answer.
func ask(c net.Conn, request string, status int) (*bufio.Reader, error) {
	if _, err := io.WriteString(c, request); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(c, 1024)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != status {
		return nil, fmt.Errorf("%s: %s", c.RemoteAddr(), resp.Status)
	}
	if status == http.StatusSwitchingProtocols {
		return r, nil
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return nil, err
	}
	return r, resp.Body.Close()
}

// echo answers a WebSocket's handshake and sends its bytes back as they are.
func echo(w http.ResponseWriter, r *http.Request) {
	c, buf, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"); err != nil {
		return
	}
	_, _ = io.Copy(c, buf)
}
