package store

// SQLChannelOwed is the drain's statement, for the test that reads its plan.
const SQLChannelOwed = sqlChannelOwed

// SQLSessionOwes is the sweep of one agent, for the measurement of what it reads.
const SQLSessionOwes = sqlSessionOwes

// HotStatements are the statements marked compass:hot, by the name of their constant, and sqlSessionOwes, which each start
// of a session runs.
var HotStatements = map[string]string{
	"sqlChannelOwed":   sqlChannelOwed,
	"sqlContent":       sqlContent,
	"sqlSweepChannels": sqlSweepChannels,
	"sqlSessionOwes":   sqlSessionOwes,
	"sqlAgentOwed":     sqlAgentOwed,
	"sqlRowTargets":    sqlRowTargets,
	"sqlAuthenticate":  sqlAuthenticate,
	"sqlMessagesAfter": sqlMessagesAfter,
	"sqlAck":           sqlAck,
	"sqlBurst":         sqlBurst,
}
