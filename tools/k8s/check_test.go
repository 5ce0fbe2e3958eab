package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each break of the dev overlay is found, and the overlay as it is has no fault.
func TestCheckFindsWhatIsBroken(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "k8s")
	if err := os.CopyFS(dir, os.DirFS("../../deploy/k8s")); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlays", "dev")
	if err := os.MkdirAll(filepath.Join(overlay, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nats-token", "operator-token"} {
		if err := os.WriteFile(filepath.Join(overlay, "secrets", name), []byte("t0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := settingsOf("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := render(overlay)
	if err != nil {
		t.Fatal(err)
	}
	if faults := check(docs, settings); len(faults) > 0 {
		t.Fatalf("faults of the overlay as it is: %v", faults)
	}
	for _, tt := range []struct{ old, broken, want string }{
		{"runAsNonRoot: true", "runAsNonRoot: false", "is not restricted"},
		{"type: RuntimeDefault", "type: Unconfined", "is not restricted"},
		{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "can be written"},
		{"enableServiceLinks: false", "enableServiceLinks: true", "service links"},
		{"automountServiceAccountToken: false\n      containers", "containers", "token of Kubernetes"},
		{"revisionHistoryLimit: 3", "revisionHistory: 3", "unknown field"},
		{"targetPort: http", "targetPort: web", "has no port web"},
		{"port: ops\n", "port: other\n", "probe of a port"},
		{"name: ANIMA_DATA", "name: ANIMA_DATE", "ANIMA_DATE is not a setting"},
		{"mountPath: /secrets/nats", "mountPath: /secret/nats", "in no volume"},
		{"claimName: loop", "claimName: lop", "PersistentVolumeClaim/lop, which is not there"},
		{"serviceAccountName: policy", "serviceAccountName: default", `runs as "default"`},
		{"serviceName: nats-headless", "serviceName: nets", "Service/nets"},
		{"key: token", "key: tokens", "secret that is not there"},
		{"image: nats:", "image: nats # ", "names no version"},
		{"memory: 256Mi", "memory: 0", "limit of memory"},
		{"enforce: restricted", "enforce: baseline", "does not enforce"},
		{"kind: PersistentVolumeClaim", "kind: PersistentVolume", "nothing here checks"},
	} {
		broken := make([][]byte, len(docs))
		hit := false
		for i, d := range docs {
			text := strings.ReplaceAll(string(d), tt.old, tt.broken)
			hit = hit || text != string(d)
			broken[i] = []byte(text)
		}
		if !hit {
			t.Errorf("no manifest has %q", tt.old)
		}
		if faults := strings.Join(check(broken, settings), "\n"); !strings.Contains(faults, tt.want) {
			t.Errorf("%q for %q: got %q, want a fault with %q", tt.broken, tt.old, faults, tt.want)
		}
	}
}
