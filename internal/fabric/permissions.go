package fabric

import (
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// tagStream is the tag that a worker's permissions are filled from; a Runner's is naming.RunnerTag.
const tagStream = "stream"

// Inboxes: nobody may subscribe where another role's answers arrive.
const (
	inboxServer = "_INBOX_s"
	inboxWorker = "_INBOX_w."
	inboxAdmin  = "_INBOX_a"
	inboxBackup = "_INBOX_b"
	tagOfStream = "{{tag(" + tagStream + ")}}"
)

// replyTime is how long a Server may answer a Runner's request.
const replyTime = time.Minute

// permissionsOf is the template of a role: what its users may publish and subscribe, and nothing else.
func permissionsOf(role Role) jwt.Permissions {
	switch role {
	case RoleServer:
		return serverPermissions()
	case RoleWorker:
		return workerPermissions()
	case RoleRunner:
		return runnerPermissions()
	case RoleTap:
		return allow(nil, []string{naming.BroadcastFilter})
	}
	return jwt.Permissions{Pub: jwt.Permission{Deny: jwt.StringList{">"}}, Sub: jwt.Permission{Deny: jwt.StringList{">"}}}
}

// serverPermissions: a Server publishes references and commands and answers Runners. It does not touch JetStream's API.
func serverPermissions() jwt.Permissions {
	p := allow(
		[]string{"compass.q.>", naming.BroadcastFilter, naming.ClientFilter, "compass.worker.*", runnerFilter(naming.RunnerCmd)},
		[]string{
			naming.BroadcastFilter, naming.ClientFilter, runnerFilter(naming.RunnerEvents), runnerFilter(naming.RunnerCall),
			inboxServer + ".>",
		})
	p.Resp = &jwt.ResponsePermission{MaxMsgs: 1, Expires: replyTime}
	return p
}

// workerPermissions: a worker takes from its own durable, parks to its own dead letters, commands Runners and hears their
// state for its stream. It makes and deletes nothing.
func workerPermissions() jwt.Permissions {
	queue, dead := "CMP_"+tagOfStream, "CMP_"+tagOfStream+"_DLQ"
	return allow(
		[]string{
			nextSubject(queue, naming.Durable),
			"$JS.API.CONSUMER.INFO." + queue + "." + naming.Durable,
			"$JS.API.STREAM.INFO." + queue,
			"$JS.API.STREAM.INFO." + dead,
			"$JS.API.DIRECT.GET." + dead + ".>",
			"$JS.ACK." + queue + "." + naming.Durable + ".>",
			"compass.dlq." + tagOfStream + ".>",
			naming.BroadcastFilter, runnerFilter(naming.RunnerCmd),
		},
		[]string{
			"compass.runner.*.*.state." + tagOfStream, "compass.worker." + tagOfStream, naming.BroadcastFilter,
			inboxWorker + tagOfStream + ".>",
		})
}

// runnerPermissions: a Runner speaks and hears as itself only. The id comes from a tag that the issuer has validated.
func runnerPermissions() jwt.Permissions {
	return allow(
		[]string{runnerTemplate(naming.RunnerEvents), runnerTemplate(naming.RunnerCall), runnerTemplate(naming.RunnerState)},
		[]string{runnerTemplate(naming.RunnerCmd), naming.RunnerInboxTemplate()})
}

// adminPermissions are the operator's own in COMPASS: JetStream, its advisories and the dead letters.
func adminPermissions() jwt.Permissions {
	return allow(
		[]string{"$JS.API.>", "compass.q.>", "compass.dlq.>"},
		[]string{"$JS.EVENT.ADVISORY.>", inboxAdmin + ".>"})
}

// backupPermissions are those of who saves one stream with its dead letters, and puts it back: nothing is read from it or
// written to it but as a whole.
func backupPermissions(stream string) jwt.Permissions {
	var pub []string
	for _, name := range []string{"CMP_" + stream, "CMP_" + stream + "_DLQ"} {
		for _, verb := range []string{"INFO", "SNAPSHOT", "RESTORE", "DELETE"} {
			pub = append(pub, "$JS.API.STREAM."+verb+"."+name)
		}
		pub = append(pub, "$JS.SNAPSHOT.ACK."+name+".>", "$JS.SNAPSHOT.RESTORE."+name+".>")
	}
	return allow(pub, []string{inboxBackup + ".>"})
}

// allow names what is permitted; an empty side permits nothing.
func allow(pub, sub []string) jwt.Permissions {
	side := func(subjects []string) jwt.Permission {
		if len(subjects) == 0 {
			return jwt.Permission{Deny: jwt.StringList{">"}}
		}
		return jwt.Permission{Allow: subjects}
	}
	return jwt.Permissions{Pub: side(pub), Sub: side(sub)}
}

// The legs are constants of naming, so these cannot fail.

func runnerFilter(leg naming.RunnerLeg) string {
	s, _ := naming.RunnerFilter(leg)
	return s
}

func runnerTemplate(leg naming.RunnerLeg) string {
	s, _ := naming.RunnerTemplate(leg)
	return s
}
