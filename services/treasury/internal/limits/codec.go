package limits

import (
	"encoding/base64"
	"encoding/binary"
	"errors"

	"github.com/anima-run/anima/pkg/api"
)

// errMalformed is the error for text that is not the result of an Encode.
var errMalformed = errors.New("the stored sums of the limits are malformed")

// version is the first byte of encoded sums.
const version = 1

// Encode returns the meter as text for a database: "" for the zero value, else base64 of
// varints, about nine bytes an entry.
func (m Meter) Encode() string {
	if m.latest == 0 {
		return ""
	}
	b := make([]byte, 1, 16+8*len(m.entries))
	b[0] = version
	b = binary.AppendUvarint(b, uint64(m.transfer)) //nolint:gosec // times and sums are not negative
	b = binary.AppendUvarint(b, uint64(m.latest))   //nolint:gosec // as above
	var last int64
	for _, e := range m.entries {
		b = binary.AppendUvarint(b, uint64(e.until-last)) //nolint:gosec // sorted
		b = append(b, byte(e.class))
		b = appendSum(b, e.Sum)
		last = e.until
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// DecodeMeter decodes the result of [Meter.Encode].
func DecodeMeter(text string) (Meter, error) {
	var m Meter
	if text == "" {
		return m, nil
	}
	r, err := newReader(text)
	if err != nil {
		return m, err
	}
	m.transfer, m.latest = r.number(), r.number()
	for last := int64(0); len(r.rest) > 0; {
		e := entry{until: last + r.number(), class: r.class(), Sum: r.sum()}
		last = e.until
		m.entries = append(m.entries, e)
	}
	if r.failed {
		return Meter{}, errMalformed
	}
	return m, nil
}

// Encode returns the tally as text for a database.
func (t Tally) Encode() string {
	b := binary.AppendUvarint([]byte{version}, uint64(t.Settled)) //nolint:gosec // not negative
	for c, s := range t.Sums {
		if s != (Sum{}) {
			b = appendSum(append(b, byte(c)), s)
		}
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// DecodeTally decodes the result of [Tally.Encode].
func DecodeTally(text string) (Tally, error) {
	var t Tally
	r, err := newReader(text)
	if err != nil {
		return t, err
	}
	t.Settled = r.number()
	for len(r.rest) > 0 {
		c := r.class()
		t.Sums[c] = r.sum()
	}
	if r.failed {
		return Tally{}, errMalformed
	}
	return t, nil
}

func appendSum(b []byte, s Sum) []byte {
	b = binary.AppendUvarint(b, uint64(s.Amount)) //nolint:gosec // not negative
	return binary.AppendUvarint(b, uint64(s.Payments))
}

// reader decodes varints. After a fault, rest is empty and the values are zero.
type reader struct {
	rest   []byte
	failed bool
}

func newReader(text string) (*reader, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(b) == 0 || b[0] != version {
		return nil, errMalformed
	}
	return &reader{rest: b[1:]}, nil
}

func (r *reader) number() int64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > 1<<62 {
		r.rest, r.failed = nil, true
		return 0
	}
	r.rest = r.rest[size:]
	return int64(n) //nolint:gosec // at most 2^62
}

func (r *reader) class() Class {
	if len(r.rest) == 0 || r.rest[0] >= classes {
		r.rest, r.failed = nil, true
		return 0
	}
	c := Class(r.rest[0])
	r.rest = r.rest[1:]
	return c
}

func (r *reader) sum() Sum { return Sum{Amount: api.Micros(r.number()), Payments: r.number()} }
