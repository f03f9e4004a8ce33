package main

import (
	"strings"
	"testing"
)

func TestRunAll(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if runAll(t.Context(), ".", []string{"spelling"}, &out) || !strings.Contains(out.String(), "no such check: spelling") {
		t.Errorf("an unknown check was run: %s", out.String())
	}
	// Not the top of a checkout, so there is no ledger to look at; that must not pass for a clean one.
	out.Reset()
	if runAll(t.Context(), t.TempDir(), []string{"decisions"}, &out) || !strings.Contains(out.String(), "decisions: 1 found") {
		t.Errorf("a check that could not look found nothing: %s", out.String())
	}
}
