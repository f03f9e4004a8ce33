package store

// SQLChannelOwed is the drain's statement, for the test that reads its plan.
const SQLChannelOwed = sqlChannelOwed
