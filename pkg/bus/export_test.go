package bus

// Failing is a route that cannot be served.
func Failing(err error) Route { return func(*server) error { return err } }
