package sandbox

import "fmt"

// output keeps the first and the last half of what is written to it. Its memory is
// bounded, and the start of the output and a final error message are retained.
type output struct {
	half    int
	head    []byte
	tail    []byte // the end of what head does not contain, at most twice as long as half
	written int64
	tell    func([]byte) // may be nil
}

func newOutput(limit int, tell func([]byte)) *output {
	return &output{half: max(limit/2, 1), tell: tell}
}

func (o *output) Write(p []byte) (int, error) {
	n := len(p)
	if o.tell != nil {
		o.tell(p)
	}
	o.written += int64(n)
	k := min(o.half-len(o.head), n)
	o.head = append(o.head, p[:k]...)
	for p = p[k:]; len(p) > 0; p = p[k:] {
		if len(o.tail) == 2*o.half {
			o.tail = append(o.tail[:0], o.end()...)
		}
		k = min(2*o.half-len(o.tail), len(p))
		o.tail = append(o.tail, p[:k]...)
	}
	return n, nil
}

// end returns the end of the output that String shows.
func (o *output) end() []byte { return o.tail[max(0, len(o.tail)-o.half):] }

// dropped returns the number of bytes missing between head and end.
func (o *output) dropped() int64 {
	return o.written - int64(len(o.head)) - int64(len(o.end()))
}

func (o *output) String() string {
	gap := ""
	if n := o.dropped(); n > 0 {
		gap = fmt.Sprintf("\n… %d bytes left out …\n", n)
	}
	return string(o.head) + gap + string(o.end())
}
