// Package wire turns values of the store into messages of the API and back, and errors into codes.
//
// It owns every such mapping, so that a Server's answer, a live stream and a delivery to a Runner show one message the same
// way, and a call fails alike over Connect and over NATS. It promises that what a client may send is checked for shape here
// and nowhere else: such an error matches ErrShape and its text may be shown to the client. It holds no state and must
// import nothing of ours but the store's values, the generated API, internal/fault and internal/naming.
package wire
