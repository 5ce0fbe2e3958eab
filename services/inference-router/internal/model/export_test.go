package model

// Get returns a copy of the model with an id.
func (r *Registry) Get(id string) (Model, bool) {
	if m := r.find(id); m != nil {
		return *m, true
	}
	return Model{}, false
}
