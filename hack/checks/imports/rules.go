package imports

// module is the path of this repository's module.
const module = "github.com/rigelbuild/compass-operator"

// A rule holds for the packages at or below folders. Patterns are import paths; each also stands for everything below it.
type rule struct {
	folders []string
	// deny lists what these packages must not import; allow lists exceptions to it, or, without deny, the only imports
	// outside the standard library that they may have.
	deny, allow []string
	// except lists folders for which the rule does not hold.
	except []string
	// deep: not even through other packages.
	deep bool
	// tests: test files keep the rule too.
	tests bool
	why   string
}

// Third-party worlds that have a room of their own.
var (
	nats       = []string{"github.com/nats-io"}
	postgres   = []string{"github.com/jackc"}
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
)

// dataPlane is what carries messages: it runs without Kubernetes.
var dataPlane = []string{
	"internal/store", "internal/fabric", "internal/event", "internal/comms", "internal/hub", "internal/delivery",
	"internal/presence", "internal/edge", "internal/runner", "internal/config", "internal/telemetry", "internal/wire",
}

var operator = ours("controllers", "internal/kube", "api/v1alpha1")

// rules are those of the design, section 4, about the worlds of others, and what holds for tests too; the walls between our own
// rooms are in rooms.go.
var rules = []rule{
	{
		folders: []string{"."}, except: []string{"internal/fabric", "hack", "test"}, deny: nats, tests: true,
		why: "NATS lives in internal/fabric alone",
	},
	{
		folders: []string{"."}, except: []string{"internal/store", "hack", "test"}, deny: postgres, tests: true,
		why: "pgx lives in internal/store alone",
	},
	{
		folders: append([]string{"cmd/compass", "migrations", "api/proto"}, dataPlane...), deny: kubernetes, deep: true,
		allow: []string{"sigs.k8s.io/yaml"}, // a YAML library that brings nothing of Kubernetes along
		why:   "the data plane runs without Kubernetes",
	},
	{
		folders: dataPlane, deny: operator, tests: true,
		why: "the data plane knows nothing of the operator",
	},
	{
		folders: []string{"."}, deny: []string{"github.com/nats-io/jsm.go"}, deep: true, tests: true,
		why: "jsm.go is linked by the module of internal/fabric/streambackup alone",
	},
	{folders: []string{"controllers/server"}, deny: ours("controllers/tenant", "controllers/stream"), tests: true, why: kindsMeet},
	{folders: []string{"controllers/tenant"}, deny: ours("controllers/server", "controllers/stream"), tests: true, why: kindsMeet},
	{folders: []string{"controllers/stream"}, deny: ours("controllers/server", "controllers/tenant"), tests: true, why: kindsMeet},
	{
		folders: []string{"api/v1alpha1"}, allow: []string{"k8s.io/apimachinery", "k8s.io/api"},
		why: "the API types take only apimachinery and Kubernetes' own types",
	},
	{folders: []string{"internal/naming", "internal/fault"}, why: "names and faults take only the standard library"},
}

const kindsMeet = "kinds meet through status and watches, never each other's code"

// ours makes import paths of folders of this module.
func ours(folders ...string) []string {
	paths := make([]string, 0, len(folders))
	for _, folder := range folders {
		paths = append(paths, module+"/"+folder)
	}
	return paths
}
