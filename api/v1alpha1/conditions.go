package v1alpha1

// Condition types. Every one is positive: True means that it was looked at in this pass and is so.
const (
	// ConditionReady sums up: any False is False, else any Unknown or missing is Unknown, else True.
	ConditionReady = "Ready"

	// ConditionDatabaseReady (CompassServer, CompassTenant): database, roles and grants are as they should be; for a tenant,
	// its row is.
	ConditionDatabaseReady = "DatabaseReady"
	// ConditionSchemaReady (CompassServer): every migration of this operator is applied and the audit found nothing.
	ConditionSchemaReady = "SchemaReady"
	// ConditionFabricReady (CompassServer): every NATS server holds our accounts, and a probe user connected.
	ConditionFabricReady = "FabricReady"
	// ConditionServerAvailable (CompassServer): enough Server pods are available.
	ConditionServerAvailable = "ServerAvailable"

	// ConditionServerAccepted (CompassTenant): the server exists, is ready and takes tenants from this namespace.
	ConditionServerAccepted = "ServerAccepted"
	// ConditionAccountReady (CompassTenant): the NATS account is on every server, read back.
	ConditionAccountReady = "AccountReady"
	// ConditionCredentialsReady (CompassTenant): the Secrets are published and what they hold works.
	ConditionCredentialsReady = "CredentialsReady"
	// ConditionDelivering (CompassTenant): a DeliveryStream carries the tenant.
	ConditionDelivering = "Delivering"

	// ConditionTenantsPlaced (DeliveryStream): every tenant that the stream asks for is placed on it.
	ConditionTenantsPlaced = "TenantsPlaced"
	// ConditionStreamReady (DeliveryStream): the JetStream stream is as it should be.
	ConditionStreamReady = "StreamReady"
	// ConditionDeadLetterReady (DeliveryStream): the dead-letter stream is as it should be.
	ConditionDeadLetterReady = "DeadLetterReady"
	// ConditionConsumerReady (DeliveryStream): the durable consumer is as it should be.
	ConditionConsumerReady = "ConsumerReady"
	// ConditionWorkerAvailable (DeliveryStream): the worker's pod is available, or the stream is suspended.
	ConditionWorkerAvailable = "WorkerAvailable"
	// ConditionSingleWriter (DeliveryStream): one worker holds the lease.
	ConditionSingleWriter = "SingleWriter"
)

// Reasons. Their form shows their class: a state; WaitingFor… when another must move first; …Unreachable and …Failed when
// we could not tell and try again; Invalid…, …Conflict and Reserved… when this generation cannot work.
const (
	// ReasonApplied: it is as the spec asks, seen in this pass.
	ReasonApplied = "Applied"
	// ReasonAvailable: pods are available.
	ReasonAvailable = "Available"
	// ReasonSuspended: the spec asks for no worker.
	ReasonSuspended = "Suspended"
	// ReasonPaused: the object carries the paused annotation; nothing is written.
	ReasonPaused = "Paused"
	// ReasonDeleting: the object is being deleted.
	ReasonDeleting = "Deleting"
	// ReasonDriftRepaired (event): somebody else had changed what the message names, and it is put back.
	ReasonDriftRepaired = "DriftRepaired"
	// ReasonDriftDetected: somebody else changed what the message names, and spec.drift is Report.
	ReasonDriftDetected = "DriftDetected"
	// ReasonScaleReverted (event): somebody else scaled the worker, and there is one again. More throughput is one more
	// DeliveryStream that names or selects some of the tenants: they move to it while delivery goes on, lose nothing and get
	// nothing twice; TenantsPlaced of that stream says who is still on the way.
	ReasonScaleReverted = "ScaleReverted"
	// ReasonScaleContested: somebody keeps scaling the worker; the operator undoes it less and less often. One of them
	// writes all the same, which the lease sees to. Remove the autoscaler, and split the tenants over two streams instead: see
	// ScaleReverted.
	ReasonScaleContested = "ScaleContested"
	// ReasonReleased: a deletion ended without removing everything, because the force-release annotation said so or the
	// CompassServer was deleted first. The message says what is left.
	ReasonReleased = "Released"
	// ReasonDeletionBlocked: the message says what the deletion waits for, and how to let go of it.
	ReasonDeletionBlocked = "DeletionBlocked"

	// ReasonWaitingForDependency: an earlier step of the same object is not done.
	ReasonWaitingForDependency = "WaitingForDependency"
	// ReasonWaitingForServer: the CompassServer does not exist or is not ready.
	ReasonWaitingForServer = "WaitingForServer"
	// ReasonWaitingForSecret: a referenced Secret does not exist or lacks a key.
	ReasonWaitingForSecret = "WaitingForSecret"
	// ReasonWaitingForTenant: a named tenant does not exist.
	ReasonWaitingForTenant = "WaitingForTenant"
	// ReasonWaitingForRollout: the pods that serve a tenant have yet to take in the database that it shall live in.
	ReasonWaitingForRollout = "WaitingForRollout"
	// ReasonWaitingForMove: the tenant is being moved to another database; until it is there, what is written is refused with
	// a word to try again, and nothing is lost.
	ReasonWaitingForMove = "WaitingForMove"
	// ReasonMoveFailed: a move did not end; the tenant goes on where it lives, and it is tried again.
	ReasonMoveFailed = "MoveFailed"
	// ReasonWaitingForDrain: a running worker has yet to let go of a tenant that moves.
	ReasonWaitingForDrain = "WaitingForDrain"
	// ReasonWaitingForPods: pods are not available yet.
	ReasonWaitingForPods = "WaitingForPods"
	// ReasonPodsFailed: a pod may not be made, or does not start; the message says which, and what to look at.
	ReasonPodsFailed = "PodsFailed"
	// ReasonWaitingForWriter: no worker holds the lease yet.
	ReasonWaitingForWriter = "WaitingForWriter"
	// ReasonWaitingForConsent: the server does not take tenants from this namespace.
	ReasonWaitingForConsent = "WaitingForConsent"
	// ReasonServerGone: the CompassServer was deleted.
	ReasonServerGone = "ServerGone"
	// ReasonNoStream: no DeliveryStream carries the tenant; its messages are kept and owed.
	ReasonNoStream = "NoStream"

	// ReasonDatabaseUnreachable: Postgres does not answer.
	ReasonDatabaseUnreachable = "DatabaseUnreachable"
	// ReasonDatabaseAuthFailed: Postgres refuses the admin's credentials.
	ReasonDatabaseAuthFailed = "DatabaseAuthFailed"
	// ReasonDatabaseUnfit: Postgres is older than what is supported; the message has both versions.
	ReasonDatabaseUnfit = "DatabaseUnfit"
	// ReasonWaitingForSuperuser: something in Postgres is not as it must be, and only a superuser can put it right; the
	// message has the statement.
	ReasonWaitingForSuperuser = "WaitingForSuperuser"
	// ReasonMigrationFailed: a migration failed; the schema is at the version before it.
	ReasonMigrationFailed = "MigrationFailed"
	// ReasonFabricUnreachable: NATS does not answer.
	ReasonFabricUnreachable = "FabricUnreachable"
	// ReasonFabricUnfit: somebody else's NATS is not as it must be; the message says which server lacks what.
	ReasonFabricUnfit = "FabricUnfit"
	// ReasonAccountFailed: a NATS server refuses an account.
	ReasonAccountFailed = "AccountFailed"
	// ReasonApplyFailed: the Kubernetes API refused or failed a write.
	ReasonApplyFailed = "ApplyFailed"
	// ReasonReconcileFailed: anything else that is tried again.
	ReasonReconcileFailed = "ReconcileFailed"

	// ReasonRoleOwnsObjects: a SQL login cannot be dropped, because it made objects; the message says how many, and what to do.
	ReasonRoleOwnsObjects = "RoleOwnsObjects"
	// ReasonInvalidSpec: the spec cannot work; the message says why.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonInvalidSecret: a referenced Secret holds something that cannot work.
	ReasonInvalidSecret = "InvalidSecret"
	// ReasonReservedSlug: the slug is a reserved word.
	ReasonReservedSlug = "ReservedSlug"
	// ReasonSlugConflict: another CompassTenant owns the slug.
	ReasonSlugConflict = "SlugConflict"
	// ReasonDatabaseConflict: somebody else keeps the database, or the tenant lives in another one; the message says what to do.
	ReasonDatabaseConflict = "DatabaseConflict"
	// ReasonTenantConflict: another DeliveryStream claims a tenant.
	ReasonTenantConflict = "TenantConflict"
	// ReasonAccountConflict: the account that the operator would make exists and is something else.
	ReasonAccountConflict = "AccountConflict"
	// ReasonTokenConflict: the published token was revoked.
	ReasonTokenConflict = "TokenConflict"
	// ReasonSecretConflict: a Secret of that name exists and is not ours.
	ReasonSecretConflict = "SecretConflict"
	// ReasonObjectConflict: an object of a child's name exists and is not ours.
	ReasonObjectConflict = "ObjectConflict"
	// ReasonIdentityConflict: the volume holds the keys of another operator; nothing is overwritten.
	ReasonIdentityConflict = "IdentityConflict"
)
