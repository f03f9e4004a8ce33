package event

// The names of all events.
const (
	NameMessagePosted         Name = "message_posted"
	NameMessageVisible        Name = "message_visible"
	NameMessageUpdated        Name = "message_updated"
	NameChannelChanged        Name = "channel_changed"
	NameAgentWorkspaceChanged Name = "agent_workspace_changed"
	NameTopicUpserted         Name = "topic_upserted"
	NameBindingChanged        Name = "binding_changed"
	NameCursorMoved           Name = "cursor_moved"
	NamePlacementChanged      Name = "placement_changed"
	NamePresenceChanged       Name = "presence_changed"
	NameAccessChanged         Name = "access_changed"
	NameHeartbeat             Name = "heartbeat"
	NameClientLagged          Name = "client_lagged"
)

// Catalogue returns every event and how it travels (DELIVERY-2, REQ-141). Adding one is an entry here, a constructor in
// facts.go, and docs/events.md written again.
func Catalogue() []Entry {
	return []Entry{
		declare(NameMessagePosted, "a message was committed, or the turn that held it has settled").
			rowIn("message", "channel").versionedBy(VersionRev).
			queue("it is owed to agents: work that must happen once, so one worker claims it",
				off("message_visible is given up: clients hear that one, and no process takes one fact from both lanes")),

		declare(NameMessageVisible, "a message may be seen by the people of its channel").
			rowIn("message", "channel").versionedBy(VersionRev).
			broadcast("a reader's stream may hang on any Server", on("readers whose stream hangs on the poster's own Server")),
		declare(NameMessageUpdated, "a visible message was edited, framed, answered or settled").
			rowIn("message", "channel").versionedBy(VersionRev).
			broadcast("whoever shows the message shows it as it was", on("readers whose stream hangs on this Server")),
		declare(NameChannelChanged, "a channel was made, changed or archived, or its members or pins have changed").
			row("channel").versionedBy(VersionClock).
			broadcast("streams and lists of channels are held on every Server", on("streams held here")),
		declare(NameAgentWorkspaceChanged, "what an agent works on has changed").
			row("agent account").versionedBy(VersionClock).
			broadcast("people look at agents from any Server", on("streams held here")),
		declare(NameTopicUpserted, "a topic of a channel was made or changed").
			rowIn("topic", "channel").versionedBy(VersionClock).
			broadcast("lists of topics are shown from any Server", on("streams held here")),

		declare(NameBindingChanged, "an agent's session began, ended or was replaced").
			row("agent account").versionedBy(VersionClock).
			broadcast("each Server caches who is bound where; a lost one is a cache miss that Postgres answers (REQ-122)",
				on("the cache of this process")),
		declare(NameCursorMoved, "an agent's acknowledgement moved its cursor").
			rowIn("agent account", "channel").versionedBy(VersionCursor).
			broadcast("people see from any Server what an agent has read", on("streams held here")),
		declare(NamePlacementChanged, "a tenant was placed, drained, moved or frozen").
			row("tenant").versionedBy(VersionClock).
			broadcast("each process routes by a copy of the placement; a lost one is healed by its next read", on("the copy here")),
		declare(NamePresenceChanged, "an account came, went or changed what it shows").
			row("account").versionedBy(VersionClock).
			broadcast("presence is shown on every Server; the truth is the binding or the connection", on("streams held here")),

		declare(NameAccessChanged, "a token of an account was revoked, or the account's role changed or it was deleted").
			row("account").versionedBy(VersionClock).
			broadcast("a stream of the account may hang on any Server, and must end at once where it may no longer be", on("streams held here")),

		declare(NameHeartbeat, "an instance is there").
			row("tenant").versionedBy(VersionNone).
			broadcast("keeps a listener's idle timer alive; no business reacts",
				off("something in the producing process must know that it is itself alive")),
		declare(NameClientLagged, "a client stream fell behind the bus and was told to resync").
			row("connection").versionedBy(VersionBusSeq).
			local("only the process that holds the connection can count and act on it",
				off("a client stream can be taken over by another instance without a new connection")),
	}
}
