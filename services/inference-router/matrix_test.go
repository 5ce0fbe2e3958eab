package router_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
)

// matrixOf returns the built-in matrix with one model in each served cell.
func matrixOf(t *testing.T, b *bus.Bus, id string) api.Matrix {
	t.Helper()
	state, err := bus.Call[api.MatrixState](t.Context(), b, api.GetMatrix{})
	if err != nil || len(state.Matrix) != 25 {
		t.Fatalf("got %+v, %v", state, err)
	}
	for i := range state.Matrix {
		if len(state.Matrix[i].Models) > 0 {
			state.Matrix[i].Models = []string{id}
		}
	}
	return state.Matrix
}

// chosen returns the model that the replica that answers selects.
func chosen(t *testing.T, b *bus.Bus) string {
	t.Helper()
	route, err := bus.Call[api.Route](t.Context(), b, api.ExplainRoute{Tier: api.TierNormal})
	if err != nil {
		t.Fatal(err)
	}
	return route.Chosen
}

// put stores bytes as the matrix, as a program other than the router would.
func put(t *testing.T, w *apptest.World, data string) {
	t.Helper()
	bucket, err := bus.OpenBucket[api.StoredMatrix](t.Context(), w.Bus)
	if err != nil {
		t.Fatal(err)
	}
	all := func(api.StoredMatrix) bool { return true }
	if _, _, err := bucket.Take(t.Context(), api.MatrixKey, api.StoredMatrix{Data: []byte(data)}, 0, all); err != nil {
		t.Fatal(err)
	}
}

// TestMatrixIsSwappedUnderCalls checks that no call fails while the matrix is replaced, and
// that calls that begin after the replacement use the new one.
func TestMatrixIsSwappedUnderCalls(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	w, _ := paid(t, s.url, nil)
	var wg sync.WaitGroup
	var done atomic.Bool
	for caller := range 8 {
		wg.Go(func() {
			for n := 0; !done.Load(); n++ {
				call := request("swap-"+strconv.Itoa(caller)+"-"+strconv.Itoa(n), "hello")
				call.Model = ""
				if answer, _, err := complete(t, w.Bus, call); err != nil || answer.Model != "m" && answer.Model != "n" {
					t.Errorf("a call during a replacement: %+v, %v", answer, err)
					return
				}
			}
		})
	}
	for n := range 20 {
		id := []string{"n", "m"}[n%2]
		state, err := bus.Call[api.MatrixState](t.Context(), w.Bus, api.SetMatrix{Matrix: matrixOf(t, w.Bus, id)})
		if err != nil || state.Builtin || state.Revision == 0 {
			t.Fatalf("got %+v, %v", state, err)
		}
		call := request("after-"+strconv.Itoa(n), "hello")
		call.Model = ""
		if answer, _, err := complete(t, w.Bus, call); err != nil || answer.Model != id {
			t.Errorf("after the replacement: %s, %v; want %s", answer.Model, err, id)
		}
	}
	done.Store(true)
	wg.Wait()
}

// TestBrokenMatrixIsRefused checks that an invalid value, from a request or in the bucket,
// changes nothing, that the next valid one is used, and that a restart finds it.
func TestBrokenMatrixIsRefused(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	server, data, b := apptest.Server(t), t.TempDir(), newBooks()
	env := map[string]string{"OPENAI_BASE_URL": s.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000,n=1/4/128000"}
	open := func() *apptest.World {
		return apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service, b.service())
	}
	w := open()
	if got := chosen(t, w.Bus); got != "m" {
		t.Fatalf("by the built-in matrix: got %q, want m", got)
	}
	if _, err := bus.Call[api.MatrixState](t.Context(), w.Bus, api.SetMatrix{Matrix: matrixOf(t, w.Bus, "n")[1:]}); api.CodeOf(err) != api.Invalid {
		t.Errorf("a matrix without a cell: got %v, want %s", err, api.Invalid)
	}
	next, err := json.Marshal(api.SetMatrix{Matrix: matrixOf(t, w.Bus, "n")})
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{"", "null x", "\xff", `{"matrix":[]}`, `{"matriks":[]}`, string(next[:len(next)-1])} {
		put(t, w, broken)
	}
	// The bucket delivers the values in order: when the last one is in use, the broken ones
	// have been refused.
	put(t, w, string(next))
	waitChosen(t, w.Bus, "n")
	put(t, w, "broken")
	w.Stop()
	w = open()
	if got := chosen(t, w.Bus); got != "m" {
		t.Errorf("a broken value at the start: got %q, want m by the built-in matrix", got)
	}
	if state, err := bus.Call[api.MatrixState](t.Context(), w.Bus, api.SetMatrix{Matrix: matrixOf(t, w.Bus, "n")}); err != nil || state.Builtin {
		t.Fatalf("got %+v, %v", state, err)
	}
	w.Stop()
	w = open()
	if got := chosen(t, w.Bus); got != "n" {
		t.Errorf("after a restart: got %q, want n", got)
	}
	if state, err := bus.Call[api.MatrixState](t.Context(), w.Bus, api.SetMatrix{}); err != nil || !state.Builtin || chosen(t, w.Bus) != "m" {
		t.Errorf("after a reset: got %+v, %v", state, err)
	}
}

// waitChosen waits until all answers of the replicas name a model.
func waitChosen(t *testing.T, b *bus.Bus, id string) {
	t.Helper()
	late := time.After(30 * time.Second)
	for same := 0; same < 20; { // of two replicas, one answers each request
		if same++; chosen(t, b) != id {
			same = 0
		}
		select {
		case <-late:
			t.Fatalf("not all replicas choose %s", id)
		default:
		}
	}
}

// TestReplicasUseTheSameMatrix checks that a matrix that one of two replicas has stored is
// used by both.
func TestReplicasUseTheSameMatrix(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("yes"), chunkStop, chunkDone) })
	server, data, b := apptest.Server(t), t.TempDir(), newBooks()
	env := map[string]string{"OPENAI_BASE_URL": s.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000,n=1/4/128000"}
	w := apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service, b.service())
	apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service)
	for _, id := range []string{"n", "m", "n"} {
		if _, err := bus.Call[api.MatrixState](t.Context(), w.Bus, api.SetMatrix{Matrix: matrixOf(t, w.Bus, id)}); err != nil {
			t.Fatal(err)
		}
		waitChosen(t, w.Bus, id)
	}
}
