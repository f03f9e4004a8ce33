package delivery

import "time"

// Clock is the time of the worker. SystemClock is the one of a process; tests and simulations bring their own.
type Clock interface {
	// Now carries a monotonic reading in a process, so that differences survive a stepped wall clock.
	Now() time.Time
	// NewTimer fires once after d.
	NewTimer(d time.Duration) Timer
}

// Timer is one pending wake-up.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
}

// SystemClock is the clock of the process.
type SystemClock struct{}

// Now is time.Now.
func (SystemClock) Now() time.Time { return time.Now() }

// NewTimer is time.NewTimer.
func (SystemClock) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ t *time.Timer }

// C implements Timer.
func (t systemTimer) C() <-chan time.Time { return t.t.C }

// Stop implements Timer.
func (t systemTimer) Stop() bool { return t.t.Stop() }
