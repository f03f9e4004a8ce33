package fabric

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// The headers that carry a call over NATS: the procedure there, the Connect status back.
const (
	headerProcedure = "Compass-Procedure"
	headerCode      = "Compass-Code" // lower case with underscores; absent: done
	headerMessage   = "Compass-Message"
	headerMeta      = "Compass-Meta-"  // followed by the metadata's name
	headerDetail    = "Compass-Detail" // base64 of a serialized Any, one value each
)

// codeOf is the Connect code that an error stands for. What no handler has given a code is internal: it is a bug or an
// outage, and its text may tell what a Runner must not know.
func codeOf(err error) (code connect.Code, message string) {
	var c *connect.Error
	switch {
	case errors.As(err, &c):
		return c.Code(), c.Message()
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded, "the deadline passed"
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled, "canceled"
	}
	return connect.CodeInternal, "internal error"
}

// encodeStatus puts an error into headers.
func encodeStatus(err error) nats.Header {
	h := nats.Header{}
	if err == nil {
		return h
	}
	code, message := codeOf(err)
	h.Set(headerCode, code.String())
	h.Set(headerMessage, oneLine(message))
	var c *connect.Error
	if !errors.As(err, &c) {
		return h
	}
	for k, values := range c.Meta() {
		for _, v := range values {
			h.Add(headerMeta+k, oneLine(v))
		}
	}
	for _, d := range c.Details() {
		detail := &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()}
		if text, err := proto.Marshal(detail); err == nil {
			h.Add(headerDetail, base64.StdEncoding.EncodeToString(text))
		}
	}
	return h
}

// decodeStatus reads it back; nil if the call succeeded.
func decodeStatus(h nats.Header) error {
	text := h.Get(headerCode)
	if text == "" {
		return nil
	}
	var code connect.Code
	if code.UnmarshalText([]byte(text)) != nil {
		code = connect.CodeUnknown
	}
	err := connect.NewWireError(code, errors.New(h.Get(headerMessage)))
	for k, values := range h {
		if name, ok := strings.CutPrefix(k, headerMeta); ok {
			err.Meta()[http.CanonicalHeaderKey(name)] = values
		}
	}
	for _, text := range h[headerDetail] {
		raw, derr := base64.StdEncoding.DecodeString(text)
		var detail anypb.Any
		if derr != nil || proto.Unmarshal(raw, &detail) != nil {
			continue
		}
		if d, derr := connect.NewErrorDetail(&detail); derr == nil {
			err.AddDetail(d)
		}
	}
	return err
}

// oneLine keeps a value from ending its header.
func oneLine(s string) string {
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(s)
}

// AnswerOf is how an error of an event's handler is answered; an empty code means done.
func AnswerOf(err error) *compassv1.RunnerEventAnswer {
	if err == nil {
		return &compassv1.RunnerEventAnswer{}
	}
	code, message := codeOf(err)
	return &compassv1.RunnerEventAnswer{Code: code.String(), Detail: message}
}

// SeenByCaller is what an error of a call's handler becomes on the way to the Runner.
func SeenByCaller(err error) error { return decodeStatus(encodeStatus(err)) }
