package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/config"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadFillsDefaults(t *testing.T) {
	t.Parallel()
	c, err := config.Load(write(t, "delivery: {stream: main, floorTick: 1m}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if time.Duration(c.Delivery.FloorTick) != time.Minute || c.Delivery.MaxDeliver != 5 || len(c.Delivery.Backoff) != 3 {
		t.Errorf("delivery = %+v: want the given tick and the default attempts", c.Delivery)
	}
	if c.Server.Listen != "127.0.0.1:8080" {
		t.Errorf("listen = %q: without a certificate only the own machine may reach it", c.Server.Listen)
	}
}

// Two workers of one host must not take each other's lease, and a pod's container takes its own back.
func TestHolderIsNobodyElses(t *testing.T) {
	t.Setenv(config.EnvPod, "")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := (config.Config{}).WithDefaults().Delivery.Holder, fmt.Sprintf("%s/%d", host, os.Getpid()); got != want {
		t.Errorf("holder = %q, want %q", got, want)
	}
	t.Setenv(config.EnvPod, "worker-abc")
	if got := (config.Config{}).WithDefaults().Delivery.Holder; got != "worker-abc" {
		t.Errorf("holder = %q in a pod", got)
	}
}

func TestLoadRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ content, says string }{
		"unknown field":     {"delivery: {replicas: 2}\n", "replicas"},
		"duration, no unit": {"delivery: {lease: 6}\n", "unit"},
		"duration, days":    {"delivery: {lease: 1d}\n", "30s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(write(t, tc.content))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error = %v: want it to say %q", err, tc.says)
			}
		})
	}
}

func TestValidateNamesEveryField(t *testing.T) {
	t.Parallel()
	err := config.Config{Log: config.Log{Level: "loud"}}.WithDefaults().ValidateDelivery()
	for _, field := range []string{"log.level", "store.databasesFile", "fabric.commandKeysFile", "fabric.urls", "delivery.stream"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error = %v: want it to name %s", err, field)
		}
	}
	negative := config.Config{
		Store: config.Store{MaxConnections: -1}, Fabric: config.Fabric{BootWait: -1}, Delivery: config.Delivery{MaxDeliver: -1, MaxAckPending: -5},
	}.WithDefaults().ValidateDelivery()
	for _, field := range []string{"store.maxConnections", "fabric.bootWait", "delivery.maxDeliver", "delivery.maxAckPending"} {
		if negative == nil || !strings.Contains(negative.Error(), field) {
			t.Errorf("error = %v: want it to name %s", negative, field)
		}
	}
	half := config.Config{Server: config.Server{TLSCertFile: "x"}}.WithDefaults().ValidateServer()
	if !strings.Contains(half.Error(), "tlsKeyFile") {
		t.Errorf("error = %v: half a certificate was accepted", half)
	}
}

func TestSecretsNeverReachErrors(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for name, load := range map[string]func(string) error{
		"databases":    func(p string) error { _, err := config.LoadDatabases(p); return err },
		"issuers":      func(p string) error { _, err := config.LoadIssuers(p); return err },
		"command keys": func(p string) error { _, err := config.LoadCommandKeys(p); return err },
	} {
		for _, content := range []string{"{" + secret, "databases: " + secret, "keys: [{id: a, seed: " + secret + "}]", secret + ": 1", "fleets: {shared: {account: A, seed: [" + secret + "]}}"} {
			err := load(write(t, content))
			if err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("%s from %q: error = %v: want one that does not quote the content", name, content, err)
			}
		}
	}
}

func TestCommandKeysRoundTrip(t *testing.T) {
	t.Parallel()
	keys, err := config.LoadCommandKeys(write(t, "keys: [{id: a, seed: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]\n"))
	if err != nil || len(keys) != 1 || keys[0].ID != "a" || len(keys[0].Public) != 32 {
		t.Fatalf("keys = %+v, %v", keys, err)
	}
}
