package bus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestReplicas checks that the slow answer of a service is waited for, and that services
// without an answer are left out.
func TestReplicas(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	nc := connect(t, s).NATS()
	answer := func(service string, after time.Duration) {
		t.Helper()
		data, err := api.Encode(micro.Ping{ServiceIdentity: micro.ServiceIdentity{Name: service, ID: service + "-1", Version: "1.0.0"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe("$SRV.PING", func(m *nats.Msg) {
			time.AfterFunc(after, func() { _ = m.Respond(data) }) // an answer to an ended test is lost
		}); err != nil {
			t.Fatal(err)
		}
	}
	answer("social", 0)
	answer("loop", 900*time.Millisecond)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	got, err := b.Replicas(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	want := []bus.Replica{{Service: "loop", Instance: "loop-1", Version: "1.0.0"}, {Service: "social", Instance: "social-1", Version: "1.0.0"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
