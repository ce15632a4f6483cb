// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"io"

	"github.com/weirlb/weir/health"
)

// talk says what there is to say and waits for what has to come. What comes is read
// until it is there, the backend ends, or the time is over.
func (p *Prober) talk(c *conn, j *job) verdict {
	t := j.target.Talk
	if t.Datagrams {
		return p.exchange(c, j)
	}
	if t.Send != "" {
		if _, err := io.WriteString(c, t.Send); err != nil {
			return p.lost(err, j, "could not be asked")
		}
	}
	var got []byte
	buf := make([]byte, 4096)
	for len(got) < maxContent {
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		switch {
		case n > 0 && (t.Want == nil || t.Want.in(got)):
			return verdict{}
		case err == nil:
		case len(got) == 0:
			return p.lost(err, j, "no answer")
		case errors.Is(err, io.EOF), isTimeout(err):
			return unwanted(got, t.Want, "")
		default:
			return p.lost(err, j, "the answer was incomplete")
		}
	}
	return unwanted(got, t.Want, " in its first 64KiB")
}

// unwanted is an answer that does not have what it has to.
func unwanted(got []byte, want *Match, where string) verdict {
	return verdict{
		outcome: health.NotReady, cause: health.CauseBody,
		text: oneLine("body: "+excerpt(got)+" does not contain "+want.String()) + where,
	}
}
