// Package naming owns every name that Compass derives and every format that two parts must agree on: ids and tokens,
// NATS subjects, streams and headers, Postgres roles and databases, and the Kubernetes children, labels and annotations.
//
// It promises that nothing built here can be read as something else: a part that would break the whole (a dot, a wildcard,
// a space, a control character, too many bytes) is refused with an error that says what is wrong and what is allowed, and
// what can be built can be parsed back to the same parts. Every error matches ErrInvalid. Secrets never appear in one.
//
// Names are rules of design.md sections 4 to 8, protocol.md ("Bodies and subjects") and api.md.
//
// It must never import anything but the standard library.
package naming
