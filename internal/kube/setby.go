package kube

import (
	"encoding/json"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// SetBy names who set a field of a live object last, if it was not us, as the API server remembers it: a field manager
// such as kubectl or kube-controller-manager. path is that of field ownership, such as "f:spec", "f:replicas".
func SetBy(live client.Object, path ...string) string {
	other := ""
	for _, m := range live.GetManagedFields() {
		if m.FieldsV1 == nil || !owns(m.FieldsV1.GetRawBytes(), path) {
			continue
		}
		if m.Manager == naming.FieldOwner {
			return ""
		}
		other = m.Manager
	}
	return other
}

func owns(fields []byte, path []string) bool {
	for _, key := range path {
		var level map[string]json.RawMessage
		if json.Unmarshal(fields, &level) != nil {
			return false
		}
		next, there := level[key]
		if !there {
			return false
		}
		fields = next
	}
	return true
}
