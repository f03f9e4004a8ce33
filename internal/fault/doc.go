// Package fault gives an error a class, so that whoever handles it knows what to do next without reading its text.
//
// It owns four constructors that say more than an ordinary error does, one that only adds a reason, and the questions a
// handler may ask. There is no registry and no state.
//
//	class      made by                     reconciler                        delivery callback
//	waiting    Waiting(reason, msg)        False WaitingFor…, poll or watch  not used
//	transient  any error, Transient,       Unknown …Unreachable/…Failed,     delayed nak
//	           RetryAfter(d, err)          backoff
//	terminal   Terminal(reason, err)       False Invalid…/…Conflict, no      not used
//	                                       retry until an input changes
//	poison     Poison(reason, err)         not used                          parked at once
//
// How a class is found: the outermost fault on the way in decides, because whoever wrapped last knew most. Where the way
// forks (errors.Join, or fmt.Errorf with several %w) every branch is judged and the worst wins:
// poison > terminal > transient > waiting. A branch without a fault is transient. So put a fault around a sentinel, not
// beside it: fmt.Errorf("%w: %w", ErrX, fault.Waiting(…)) is transient, by its ErrX.
//
// It must never import anything but the standard library.
package fault
