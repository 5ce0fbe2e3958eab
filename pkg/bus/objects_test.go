package bus_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

func noise(n int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // any bytes will do
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

func TestObjects(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		out, in := bus.NewObjects(b, api.Outputs), bus.NewObjects(other, api.Outputs)
		for _, n := range []int{0, 1, 128<<10 - 1, 128 << 10, 128<<10 + 1, 1 << 20} {
			name := fresh("o")
			if _, _, err := in.Read(ctx, name, 0, 10); api.CodeOf(err) != api.NotFound {
				t.Errorf("before it is there: %v, want not found", err)
			}
			data := noise(n)
			for range 2 { // storing the same data again changes nothing
				if err := out.Put(ctx, name, data); err != nil {
					t.Fatal(err)
				}
			}
			var got []byte
			for {
				part, size, err := in.Read(ctx, name, int64(len(got)), 100_000)
				if err != nil || size != int64(n) {
					t.Fatalf("%d bytes: read %d of %d, %v", n, len(part), size, err)
				}
				if got = append(got, part...); len(part) == 0 {
					break
				}
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%d bytes came back as %d others", n, len(got))
			}
			if part, _, err := in.Read(ctx, name, int64(n)+5, 10); err != nil || len(part) != 0 {
				t.Errorf("behind the end: %d bytes, %v", len(part), err)
			}
		}
	})
}

// TestObjectsReplace checks that a reader gets the previous or the new object, never a
// mixture.
func TestObjectsReplace(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx := testContext(t)
	o := bus.NewObjects(b, api.Outputs)
	versions := map[string]bool{}
	all := [][]byte{noise(300_000), noise(300_001), noise(17)}
	hash := func(b []byte) string { sum := sha256.Sum256(b); return hex.EncodeToString(sum[:]) }
	for _, v := range all {
		versions[hash(v)] = true
	}
	if err := o.Put(ctx, "x", all[0]); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	for _, v := range all {
		work.Go(func() {
			for range 5 {
				if err := o.Put(ctx, "x", v); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	for range 20 {
		got, _, err := o.Read(ctx, "x", 0, 1<<20)
		if err != nil || !versions[hash(got)] {
			t.Errorf("read %d bytes that were not written, %v", len(got), err)
		}
	}
	work.Wait()
	// The client of NATS reads objects in this format.
	store, err := raw(t, s).ObjectStore(ctx, api.Outputs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.GetBytes(ctx, "x")
	if err != nil || !versions[hash(got)] {
		t.Errorf("NATS reads %d bytes, %v", len(got), err)
	}
}

// TestObjectsPermissions checks that loop is the only service that may use its outputs.
func TestObjectsPermissions(t *testing.T) {
	t.Parallel()
	url, seeds := guardedServer(t)
	ctx := testContext(t)
	as := func(user string) *bus.Objects {
		c, err := bus.Dial(bus.DialOptions{URL: url, NKey: seeds[user], Name: user, Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return bus.NewObjects(newBus(t, c, bus.Options{Service: user}), api.Outputs)
	}
	if err := as("loop").Put(ctx, "x", noise(200_000)); err != nil {
		t.Fatalf("loop keeps an output: %v", err)
	}
	if part, size, err := as("loop").Read(ctx, "x", 150_000, 10); err != nil || len(part) != 10 || size != 200_000 {
		t.Errorf("loop reads %d of %d bytes, %v", len(part), size, err)
	}
	if part, _, err := as(bus.Operator).Read(ctx, "x", 0, 10); err != nil || len(part) != 10 {
		t.Errorf("the operator reads %d bytes, %v", len(part), err)
	}
}
