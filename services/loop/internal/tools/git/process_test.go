package git_test

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
)

// TestMain calls Init, because the calls start this binary again.
func TestMain(m *testing.M) {
	git.Init()
	os.Exit(m.Run())
}

// damaged is the hash of the object that these tests make the latest commit.
const damaged = "abababababababababababababababababababab"

// hostile returns a bench whose repository has a commit, and then names another object as the
// latest commit.
func hostile(t *testing.T) bench {
	t.Helper()
	b := newBench(t)
	b.put(t, "notes.txt", "one\n")
	b.Text(t, "git_commit", `{"message":"first"}`)
	b.put(t, ".git/refs/heads/main", damaged+"\n")
	return b
}

// compressed returns text in the format of zlib.
func compressed(t *testing.T, text io.Reader) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zlib.NewWriterLevel(&b, zlib.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestObjectThatExpands tests that an object of few bytes cannot fill the memory of the
// service.
func TestObjectThatExpands(t *testing.T) {
	t.Parallel()
	b := hostile(t)
	const size = 128 << 20
	b.put(t, ".git/objects/ab/"+damaged[2:], string(compressed(t, io.MultiReader(strings.NewReader(fmt.Sprintf("commit %d\x00", size)), io.LimitReader(zeros{}, size)))))
	out, err := git.Run(t.Context(), tools.Config{}, "git_log", engine.Call{Agent: b.Agent, Args: json.RawMessage(`{}`)}, 64<<20)
	if err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%q, %v; want an error about memory", out.Text, err)
	}
}

// TestMemory tests that a call leaves memory to the service, with which it shares a limit.
func TestMemory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ service, want int64 }{
		{200 << 20, 100 << 20},
		{math.MaxInt64, 1 << 30},
	} {
		if got := git.MemoryOf(test.service); got != test.want {
			t.Errorf("limit of the service %d: got %d, want %d", test.service, got, test.want)
		}
	}
}

// TestDeltaOfItself tests that a pack whose object is a delta of itself does not end the
// service: go-git follows it until the stack overflows, which cannot be recovered from.
func TestDeltaOfItself(t *testing.T) {
	t.Parallel()
	b := hostile(t)
	hash := bytes.Repeat([]byte{0xab}, sha1.Size)
	delta := []byte{4, 4, 4, 'a', 'b', 'c', 'd'}
	object := append([]byte{7<<4 | byte(len(delta))}, hash...) // REF_DELTA
	object = append(object, compressed(t, bytes.NewReader(delta))...)
	pack := append([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01"), object...)
	packSum := sha1.Sum(pack)

	index := []byte("\xfftOc\x00\x00\x00\x02")
	for first := range 256 {
		var count uint32
		if first >= int(hash[0]) {
			count = 1
		}
		index = binary.BigEndian.AppendUint32(index, count)
	}
	index = append(index, hash...)
	index = binary.BigEndian.AppendUint32(index, crc32.ChecksumIEEE(object))
	index = binary.BigEndian.AppendUint32(index, 12) // the offset of the object
	index = append(index, packSum[:]...)
	indexSum := sha1.Sum(index)

	name := fmt.Sprintf(".git/objects/pack/pack-%x", packSum)
	b.put(t, name+".pack", string(append(pack, packSum[:]...)))
	b.put(t, name+".idx", string(append(index, indexSum[:]...)))
	if out, err := b.Call(t, "git_log", `{}`); err == nil || !strings.Contains(err.Error(), "may be damaged") {
		t.Errorf("%q, %v; want an error about the repository", out.Text, err)
	}
	b.Text(t, "git_branch", `{"path":".","action":"list"}`) // the workspace is free
}

// TestCallEndsWithItsContext tests that a call in progress ends with its context, and the
// workspace is then free.
func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent.Network = true
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the test closed it")
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done() // until the process has ended
	}))
	t.Cleanup(server.Close)
	args := json.RawMessage(`{"url":"` + server.URL + `/far.git","path":"far"}`)
	if out, err := b.Tools["git_clone"].Run(ctx, engine.Call{Agent: b.Agent, Args: args}); !errors.Is(err, why) {
		t.Errorf("%q, %v; want %v", out.Text, err, why)
	}
	b.Text(t, "git_status", `{}`)
}

// TestCloneWhoseProcessEnds tests that a clone whose process is ended leaves no files: they
// would count towards the quota.
func TestCloneWhoseProcessEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent.Network = true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(filepath.Join(b.Agent.Workspace, "a", ".clone-far", ".git")); err != nil {
			t.Errorf("the folder of the clone: %v", err)
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		line := func(s string) error { _, err := fmt.Fprintf(w, "%04x%s", 4+len(s), s); return err }
		err := line("# service=git-upload-pack\n")
		_, _ = io.WriteString(w, "0000")
		if err == nil {
			err = line(damaged + " HEAD\x00agent=test\n")
		}
		for i := 0; err == nil; i++ { // until the process has no memory left
			err = line(fmt.Sprintf("%s refs/heads/%030000d\n", damaged, i))
		}
	}))
	t.Cleanup(server.Close)
	args := json.RawMessage(`{"url":"` + server.URL + `/far.git","path":"a/far"}`)
	out, err := git.Run(t.Context(), tools.Config{}, "git_clone", engine.Call{Agent: b.Agent, Args: args}, 64<<20)
	if err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%q, %v; want an error about memory", out.Text, err)
	}
	entries, err := os.ReadDir(filepath.Join(b.Agent.Workspace, "a"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left are %v, %v; want nothing", entries, err)
	}
}

// TestOtherReplica tests that a call waits for a process of another replica that uses the
// workspace.
func TestOtherReplica(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, ".tmp/git.lock", "")
	other, err := os.OpenFile(filepath.Join(b.Agent.Workspace, ".tmp", "git.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if out, err := b.Tools["git_status"].Run(ctx, engine.Call{Agent: b.Agent, Args: json.RawMessage(`{}`)}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%q, %v; want the call to wait", out.Text, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	b.Text(t, "git_status", `{}`)
}
