package sandbox

import "fmt"

// output keeps the first and the last half of what is written to it. Its memory is
// bounded, and the start of the output and a final error message are retained.
type output struct {
	half    int
	head    []byte
	tail    []byte // a ring buffer once it is full
	next    int    // next write position in the ring
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
	if room := o.half - len(o.head); room > 0 {
		k := min(room, len(p))
		o.head = append(o.head, p[:k]...)
		p = p[k:]
	}
	if len(p) > o.half {
		p = p[len(p)-o.half:]
	}
	if room := o.half - len(o.tail); room > 0 {
		k := min(room, len(p))
		o.tail = append(o.tail, p[:k]...)
		p = p[k:]
	}
	for len(p) > 0 {
		k := copy(o.tail[o.next:], p)
		o.next = (o.next + k) % o.half
		p = p[k:]
	}
	return n, nil
}

// dropped returns the number of bytes missing between head and tail.
func (o *output) dropped() int64 {
	return o.written - int64(len(o.head)) - int64(len(o.tail))
}

func (o *output) String() string {
	gap := ""
	if n := o.dropped(); n > 0 {
		gap = fmt.Sprintf("\n… %d bytes left out …\n", n)
	}
	return string(o.head) + gap + string(o.tail[o.next:]) + string(o.tail[:o.next])
}
