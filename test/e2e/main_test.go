// Package e2e holds the product to its promises from outside: the built program as real processes, on a real Postgres and a
// real NATS, spoken to over the Connect API, stopped, cut off and killed.
//
// A window in which a process is to die is made exact by the proxies between it and the others (proxy_test.go), never by
// code in the product. Who took what is read from the file of the agent record and from Postgres, never from the process
// that is judged. What waits polls to a deadline; every process dies with the test, whatever ends the test.
package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// program is the binary under test. It lies in the build folder of the checkout, so that a killed test leaves no litter.
const program = "../../build/e2e/compass"

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" { // this process plays the test that is killed
		os.Exit(victim())
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w -X main.version=e2e", "-o", program, "../../cmd/compass")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build compass: %v\n%s", err, out)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
