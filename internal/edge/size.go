package edge

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
)

const (
	// envelope is what gRPC puts before a message.
	envelope = 5
	// patience is how many times what is allowed is still read of a request that is refused: who is cut off in the middle of
	// writing may never read why.
	patience = 16
)

// within lets no request of more than MaxBytes through, as it comes and as it is when unpacked. Connect's own limit says
// ResourceExhausted, which for us is "come back later"; a request that is too large stays so.
func (e *Edge) within(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = struct {
			io.Reader
			io.Closer
		}{&bounded{from: r.Body, most: e.MaxBytes + envelope, left: e.MaxBytes + envelope}, r.Body}
		next.ServeHTTP(w, r)
	})
}

// unpacks is gzip, within the same bounds.
func (e *Edge) unpacks() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return &unpacking{most: e.MaxBytes} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) },
	)
}

// bounded refuses to read more than it may.
type bounded struct {
	from       io.Reader
	most, left int
}

// Read see io.Reader. The error is what a handler answers with.
func (b *bounded) Read(p []byte) (int, error) {
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.from.Read(p)
	if n <= b.left {
		b.left -= n
		return n, err
	}
	n, b.left = b.left, 0
	_, _ = io.CopyN(io.Discard, b.from, int64(b.most)*patience)
	return n, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the request is too large: at most %d bytes", b.most))
}

// unpacking is a gzip.Reader that stops at most.
type unpacking struct {
	gzip.Reader
	most    int
	bounded bounded
}

// Reset see connect.Decompressor.
func (u *unpacking) Reset(from io.Reader) error {
	u.bounded = bounded{from: &u.Reader, most: u.most, left: u.most}
	return u.Reader.Reset(from)
}

// Read see io.Reader.
func (u *unpacking) Read(p []byte) (int, error) { return u.bounded.Read(p) }
