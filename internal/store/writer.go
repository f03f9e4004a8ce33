package store

// Fence is what a delivery worker proves with every write: that it holds the lease of the stream in this database, by
// the epoch that it was given and the nonce that it chose (K3). The epoch alone is not unique: a failover that forgets the
// newest commits hands the same one out again [F2].
type Fence struct {
	Stream string
	Epoch  int64
	Nonce  string
}
