package fabric

import (
	"sync"
	"time"
)

// echo knows which changes this process made itself: word of them is no news to whoever made them and looked at the result.
type echo struct {
	now func() time.Time

	mu  sync.Mutex
	due map[Advisory][]time.Time // until when word of each is awaited
}

// echoTime is how long word of a change may take. It bounds how long an advisory that got lost hides another that is alike.
const echoTime = 5 * time.Second

// expect is called before a change is made.
func (e *echo) expect(a Advisory) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.due == nil {
		e.due = map[Advisory][]time.Time{}
	}
	e.due[a] = append(e.pending(a), e.now().Add(echoTime))
}

// heard reports whether word of a change is of one of ours.
func (e *echo) heard(a Advisory) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	due := e.pending(a)
	if len(due) < 2 {
		delete(e.due, a)
	} else {
		e.due[a] = due[1:]
	}
	return len(due) > 0
}

// pending drops what is awaited no more.
func (e *echo) pending(a Advisory) []time.Time {
	due := e.due[a]
	for len(due) > 0 && e.now().After(due[0]) {
		due = due[1:]
	}
	return due
}
