package httpapi

// bells tell those who wait under a name that something for them has changed. The holder's lock guards them.
type bells map[string]chan struct{}

// of is closed at the next ring under a name.
func (b bells) of(name string) <-chan struct{} {
	if b[name] == nil {
		b[name] = make(chan struct{})
	}
	return b[name]
}

func (b bells) ring(name string) {
	if c := b[name]; c != nil {
		close(c)
		delete(b, name)
	}
}
