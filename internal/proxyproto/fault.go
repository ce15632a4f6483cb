// SPDX-License-Identifier: Apache-2.0

package proxyproto

// Fault is why bytes were not taken for a header. It is an error, unless it is
// OK; its word is for metrics, its text for logs.
type Fault uint8

// The faults. Short and None are none of the sender's yet.
const (
	OK Fault = iota // it is a header
	// Short: the bytes are the beginning of one, and more must come.
	Short
	// None: the bytes are not a header and cannot become one.
	None
	Malformed // a header that is not as the specification has it
	TooLong   // over MaxV1 or MaxV2
	Version   // binary, and not version 2
	Checksum  // the CRC32C is another one
	faults
)

var faultWords = [faults]string{"ok", "short", "missing", "malformed", "too_long", "version", "checksum"}

var faultTexts = [faults]string{
	"the PROXY header is complete", "the PROXY header is not complete", "there is no PROXY header", "the PROXY header is malformed",
	"the PROXY header is too long (107 bytes in version 1, 4 KiB in version 2)",
	"the PROXY header is of a version other than 1 and 2", "the PROXY header's CRC32C is wrong",
}

// Error says what is wrong, for people.
func (f Fault) Error() string { return faultTexts[f] }

// Word returns the label that metrics have.
func (f Fault) Word() string { return faultWords[f] }
