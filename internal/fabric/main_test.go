package fabric_test

import (
	"fmt"
	"os"
	"testing"
)

// envRole makes the test binary one of the processes that the crash schedule kills.
const envRole = "COMPASS_FABRIC_TEST_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(envRole); role {
	case "":
		os.Exit(m.Run())
	case "server":
		err = crashServer()
	case "worker":
		err = crashWorker()
	default:
		err = fmt.Errorf("no such role %q", role)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
