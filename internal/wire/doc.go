// Package wire turns values of the store into messages of the API and back.
//
// It owns every such mapping, so that a Server's answer, a live stream and a delivery to a Runner show one message the same
// way. It promises that what a client may send is checked for shape here and nowhere else: an error of it matches ErrShape
// and its text may be shown to the client. It holds no state and must import nothing but the store's values, the generated
// API and internal/naming.
package wire
