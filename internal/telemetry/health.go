package telemetry

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check answers nil where all is well. It is given a deadline.
type Check func(context.Context) error

// checkTimeout bounds one health request; kubelets give up after a second by default, ours are told ten.
const checkTimeout = 5 * time.Second

// Handler serves /metrics, /healthz (the process should go on living) and /readyz (it should get work). The reason of a
// refusal is in the body, for people.
func (t *Telemetry) Handler(live, ready Check) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", answer(live))
	mux.Handle("GET /readyz", answer(ready))
	return mux
}

func answer(check Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
		defer cancel()
		if err := check(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
}
