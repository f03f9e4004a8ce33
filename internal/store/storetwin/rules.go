package storetwin

// Rules switch single rules of the protocol off, as negative controls. The zero value is the protocol.
type Rules struct {
	PosAtPost   bool // a held message gets its position when it is posted; its settle only lets it be seen (K1)
	Sequence    bool // numbers come from a sequence and no head is locked (K1)
	ScopeOff    bool // statements see the rows of every tenant
	BlindHealth bool // probes are answered whatever is away (D6)
	NoWriter    bool // assert_writer asserts nothing (K3)

	RouteLater    bool // positions are given without routing mentions (RouteInTx)
	SteerMoves    bool // the ack of a command moves the cursor (SteerAck)
	AckAnyPos     bool // the ack of a command names no position (AckPos)
	TickMoved     bool // a sweep lists a channel only once per head (TickAll)
	CountCommands bool // numbers of commands are last + 1 (CmdChain)
	HbAnyOrder    bool // a heartbeat settles turns however old its state is (HbOrder)
	HbNoClaims    bool // a heartbeat claims nothing (HbClaims)
	BindLoose     bool // a turn is opened without looking at the binding (BindLock)
	AnyIncarnate  bool // a binding of an older incarnation is not stale (IncMismatch)
	KeepAttempts  bool // an attempt that was survived stays (AttemptClear)
	ReplayForgets bool // a replay only deletes the dead letter (ReplayOwed)
	ManyTurns     bool // opening a turn leaves the others open (OneTurn)
	LeaseForEver  bool // assert_writer does not look at the expiry (AssertExpiry)
	NoRecheck     bool // an expiry is not judged again under the lock (ExpireRecheck, HealthDB)
	Milliseconds  bool // numbers tick in milliseconds and know no timeline (MicroClock, Timeline)
	SilentHeads   bool // the answer to a heartbeat names no commands (CmdHeads, CmdReack)
}
