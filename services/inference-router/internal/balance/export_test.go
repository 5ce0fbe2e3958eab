package balance

// States returns the states of the endpoints.
func (p *Pool) States() []State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]State(nil), p.all[:p.n]...)
}
