package runner

import compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"

// fences keeps, per tenant, the highest fence that a command carried, and that command: the proof that a refused worker
// may check. Per tenant, because two streams on one Runner would outbid each other for ever (TenantFence).
type fences map[string]mark

type mark struct {
	seen  *compassv1.Fence
	proof *compassv1.SessionsResponse
}

// admit says whether a sender with this fence may still move anything of the tenant, and remembers it if it may.
func (f fences) admit(tenant string, fence *compassv1.Fence, proof *compassv1.SessionsResponse) bool {
	if compare(fence, f[tenant].seen) < 0 {
		return false
	}
	f[tenant] = mark{seen: fence, proof: proof}
	return true
}

// compare orders by the placement's claim, then by the lease (K3). An absent fence is the lowest.
func compare(a, b *compassv1.Fence) int {
	if c := a.GetClaim() - b.GetClaim(); c != 0 {
		return sign(c)
	}
	return sign(a.GetLease() - b.GetLease())
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
