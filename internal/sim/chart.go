// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"strings"
)

// The characters of charts, from nothing to full.
const (
	eighthsRight = "▏▎▍▌▋▊▉█" // the end of a bar
	eighthsUp    = "▁▂▃▄▅▆▇█" // a point of a line
	asciiUp      = ".:-=+*%#" // the same without them
)

// bar draws v out of most as at most width characters. What is more than
// nothing draws at least the thinnest mark, so that it can be told from
// nothing; NaN and less than nothing draw nothing.
func bar(v, most float64, width int, ascii bool) string {
	if !(v > 0) || !(most > 0) || width <= 0 {
		return ""
	}
	eighths := int(math.Round(min(v/most, 1) * float64(width) * 8))
	eighths = max(eighths, 1)
	if ascii {
		return strings.Repeat("#", max((eighths+4)/8, 1))
	}
	out := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		out += string([]rune(eighthsRight)[rest-1])
	}
	return out
}

// spark draws points as one line of at most width characters, between nothing
// and most. Several points that fall on one character are drawn as the largest
// of them: a peak must not vanish by being short. NaN is a gap.
func spark(points []float64, most float64, width int, ascii bool) string {
	steps := []rune(eighthsUp)
	if ascii {
		steps = []rune(asciiUp)
	}
	width = min(width, len(points))
	var b strings.Builder
	for i := range width {
		from, to := i*len(points)/width, (i+1)*len(points)/width
		v := math.NaN()
		for _, p := range points[from:to] {
			if math.IsNaN(v) || p > v {
				v = p
			}
		}
		switch {
		case math.IsNaN(v):
			b.WriteByte(' ')
		case !(most > 0) || v <= 0:
			b.WriteRune(steps[0])
		default:
			b.WriteRune(steps[min(int(v/most*float64(len(steps))), len(steps)-1)])
		}
	}
	return b.String()
}

// largest is the largest of the points, 0 of none.
func largest(points []float64) float64 {
	most := 0.0
	for _, p := range points {
		if p > most {
			most = p
		}
	}
	return most
}
