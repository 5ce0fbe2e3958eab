package hedge

// Len returns the number of routes with samples.
func (e *Estimates) Len() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}
