package imports

import (
	"maps"
	"slices"
)

// rooms says of each room which of the others it may import: the table of docs/architecture.md, for machines. A package is of
// the nearest room above it. What is in no room may import everything: cmd wires, test and hack look from outside. Tests may
// look further than the code that they test.
var rooms = map[string][]string{
	"api/v1alpha1": {},
	"api/proto":    {},
	"migrations":   {},

	"internal/naming":    {},
	"internal/fault":     {},
	"internal/config":    {},
	"internal/telemetry": {},
	"internal/freeport":  {},

	"internal/store":  {"internal/freeport", "internal/naming", "migrations"},
	"internal/fabric": {"api/proto", "internal/freeport", "internal/naming", "internal/fault", "internal/telemetry"},

	"internal/event":    {"internal/naming"},
	"internal/presence": {"internal/event", "internal/store"},
	"internal/wire":     {"api/proto", "internal/fault", "internal/naming", "internal/store"},
	"internal/comms":    {"internal/event", "internal/fault", "internal/store", "internal/telemetry", "internal/wire"},
	"internal/hub": {
		"api/proto", "internal/comms", "internal/event", "internal/fabric", "internal/naming", "internal/presence", "internal/store",
		"internal/telemetry", "internal/wire",
	},
	"internal/edge": {
		"api/proto", "internal/comms", "internal/event", "internal/naming", "internal/store", "internal/telemetry", "internal/wire",
	},
	"internal/delivery": {
		"api/proto", "internal/event", "internal/fabric", "internal/fault", "internal/naming", "internal/store", "internal/telemetry",
		"internal/wire",
	},
	"internal/runner": {"api/proto", "internal/fabric", "internal/naming"},

	"internal/drift":   {"api/v1alpha1", "internal/fault"},
	"internal/kube":    {"api/v1alpha1", "internal/drift", "internal/fault", "internal/naming"},
	"controllers/flow": {"api/v1alpha1", "internal/drift", "internal/fault", "internal/naming"},
	"controllers/backend": {
		"api/v1alpha1", "internal/config", "internal/drift", "internal/fabric", "internal/fault", "internal/kube", "internal/naming",
		"internal/store", "migrations",
	},
	"controllers/server": kind,
	"controllers/tenant": kind,
	"controllers/stream": kind,
}

// kind is what the folder of one kind may import; never that of another.
var kind = []string{
	"api/v1alpha1", "controllers/backend", "controllers/flow", "internal/config", "internal/fabric", "internal/fault", "internal/kube",
	"internal/naming", "internal/store",
}

// walls are the rules that the rooms make.
func walls() []rule {
	var made []rule
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		made = append(made, rule{
			folders: []string{room}, deny: []string{module}, allow: ours(append(rooms[room], room)...),
			why: "the row of " + room + " in hack/checks/imports/rooms.go does not allow it",
		})
	}
	return made
}
