package fabric_test

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Holds REQ-151: what JetStream keeps says where to look, and has no field that a message would fit in.
func TestReferenceHasNoRoomForAMessage(t *testing.T) {
	t.Parallel()
	var fields []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[fabric.EventRef]()) {
		fields = append(fields, f.Tag.Get("json"))
	}
	if diff := cmp.Diff([]string{"tenant", "kind", "row_id", "-"}, fields); diff != "" {
		t.Error(diff)
	}
}
