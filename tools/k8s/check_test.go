package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the goldens")

const root = "../../deploy/k8s"

// tree returns deploy/k8s in memory, with placeholders for files that a clone does not
// have.
func tree(t *testing.T) filesys.FileSystem {
	t.Helper()
	files, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := complete(files); err != nil {
		t.Fatal(err)
	}
	return files
}

func words(t *testing.T) vocabulary {
	t.Helper()
	v, err := readVocabulary("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func mustRender(t *testing.T, files filesys.FileSystem, dir string) [][]byte {
	t.Helper()
	docs, err := render(files, dir)
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// scopeOf returns the scope with which an overlay is checked.
func scopeOf(overlay string) scope {
	if overlay == "prod" {
		return prod
	}
	return whole
}

// TestOverlays checks that every overlay renders without a fault, to the kinds and names
// of its golden file.
func TestOverlays(t *testing.T) {
	t.Parallel()
	files := tree(t)
	overlays, err := folders(files, "/overlays")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev", "lab", "prod"} {
		if !slices.Contains(overlays, name) {
			t.Errorf("there is no overlay %s: got %v", name, overlays)
		}
	}
	for _, name := range overlays {
		docs := mustRender(t, files, "/overlays/"+name)
		for _, f := range check(docs, words(t), scopeOf(name)) {
			t.Errorf("%s: %s", name, f)
		}
		golden(t, name, docs)
	}
}

// golden compares the kinds and names of an overlay's objects with the reviewed golden
// file.
func golden(t *testing.T, name string, docs [][]byte) {
	t.Helper()
	var ids []string
	for _, doc := range docs {
		var head struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatal(err)
		}
		switch head.Kind {
		case "ConfigMap", "Secret":
			head.Metadata.Name = hashed.ReplaceAllString(head.Metadata.Name, "-<hash>")
		case "Job":
			head.Metadata.Name = regexp.MustCompile(`-[0-9a-f]{10}$`).ReplaceAllString(head.Metadata.Name, "-<digests>")
		}
		ids = append(ids, head.Kind+"/"+head.Metadata.Name)
	}
	slices.Sort(ids)
	got := []byte(strings.Join(ids, "\n") + "\n")
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: run go test . -update and look at it", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has other objects than %s; if that is meant, run go test . -update\ngot:\n%s", name, path, got)
	}
}

// TestNoSecretIsCommitted checks that base has no Secret and that no file of deploy/k8s
// is one.
func TestNoSecretIsCommitted(t *testing.T) {
	t.Parallel()
	files := tree(t)
	for _, doc := range mustRender(t, files, "/base") {
		if bytes.Contains(doc, []byte("\nkind: Secret\n")) {
			t.Errorf("base has a Secret:\n%s", doc)
		}
	}
	err := files.Walk("/", func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		if bytes.Contains(append([]byte("\n"), data...), []byte("\nkind: Secret\n")) {
			t.Errorf("%s is a Secret: overlays generate them", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// order is the order of components in an overlay: secrets; components that replace the
// state, and those that need to follow them; components that change it; components that
// add to it; and components that change all objects.
var order = []string{
	"secrets-external", "secrets-sops", "postgres-cnpg", "postgres-external", "tls-cert-manager", "jaeger", "otel-collector",
	"chain", "autoscale-hpa", "autoscale-keda", "monitoring", "ingress-gateway-api", "ingress-gateway-api/jaeger", "hardening", "spread-strict", "pull-always",
}

// either lists pairs of components that exclude each other.
var either = [][2]string{{"postgres-cnpg", "postgres-external"}, {"autoscale-hpa", "autoscale-keda"}, {"secrets-external", "secrets-sops"}, {"secrets-sops", "postgres-cnpg"}}

// needs lists the components that another component requires.
var needs = map[string][]string{"ingress-gateway-api/jaeger": {"ingress-gateway-api", "jaeger"}}

// TestComponentsCompose checks that every component, and every two components that may be
// combined, render on base without a fault.
func TestComponentsCompose(t *testing.T) {
	t.Parallel()
	files := tree(t)
	components, err := folders(files, "/components")
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Clone(order)
	slices.Sort(known)
	if !slices.Equal(components, known) {
		t.Fatalf("components are %v; the order here is of %v", components, known)
	}
	flatten(t, files)
	pairs := map[string]string{}
	for i, a := range order {
		for _, b := range order[i:] {
			if slices.Contains(either, [2]string{a, b}) {
				continue
			}
			with := slices.Concat([]string{a, b}, needs[a], needs[b])
			dir := "/rendered/" + strings.ReplaceAll(a+"-and-"+b, "/", "-")
			text := "resources: [../base]\ncomponents:\n"
			for _, c := range order {
				if slices.Contains(with, c) {
					text += "  - ../../components/" + c + "\n"
				}
			}
			if err := files.WriteFile(dir+"/kustomization.yaml", []byte(text)); err != nil {
				t.Fatal(err)
			}
			pairs[a+" and "+b] = dir
		}
	}
	vocabulary := words(t)
	for name, dir := range pairs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			docs, err := renderAs(files, dir, (*resource.Resource).MarshalJSON)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range check(docs, vocabulary, part) {
				t.Error(f)
			}
		})
	}
}

// flatten writes the rendered base to /rendered/base, with generators for its ConfigMaps
// so that components can merge into them. It has the same objects as base and renders in
// a fraction of the time, which matters because it is rendered a hundred times.
func flatten(t *testing.T, files filesys.FileSystem) {
	t.Helper()
	write := func(name, text string) {
		if err := files.WriteFile("/rendered/base/"+name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	var all []string
	generators, plain := "configMapGenerator:\n", []string{}
	for _, doc := range mustRender(t, files, "/base") {
		var m corev1.ConfigMap
		if err := yaml.Unmarshal(doc, &m); err != nil || m.Kind != "ConfigMap" || !hashed.MatchString(m.Name) {
			all = append(all, string(doc))
			continue
		}
		name := hashed.ReplaceAllString(m.Name, "")
		plain = append(plain, m.Name, name)
		generators += "  - name: " + name + "\n    namespace: anima\n    files:\n"
		for key, text := range m.Data {
			write(name+"/"+key, text)
			generators += "      - " + name + "/" + key + "\n"
		}
	}
	write("all.yaml", strings.NewReplacer(plain...).Replace(strings.Join(all, "---\n")))
	write("kustomization.yaml", "resources: [all.yaml]\n"+generators)
}

// TestCheckNamesWhatIsBroken checks that each fault in the rendered prod or dev is found
// and named.
func TestCheckNamesWhatIsBroken(t *testing.T) {
	t.Parallel()
	files := tree(t)
	vocabulary := words(t)
	rendered := map[string]string{}
	for _, name := range []string{"prod", "dev"} {
		var all []string
		for _, doc := range mustRender(t, files, "/overlays/"+name) {
			all = append(all, string(doc))
		}
		rendered[name] = strings.Join(all, "\n---\n")
	}
	for _, tt := range []struct{ overlay, old, broken, want string }{
		// Faults that schemas and static checkers do not detect, for the most part.
		{"prod", "revisionHistoryLimit: 3", "revisionHistory: 3", "unknown field"},
		{"prod", "maxSurge: 1", "maxSurge: x1", "has an invalid maxSurge or maxUnavailable"},
		{"prod", "memory: 256Mi", "memory: 20q", "quantities must match"},
		{"prod", "name: ops\n", "name: Ops_\n", "has no valid name"},
		{"prod", "memory: 256Mi", "memory: 1Mi", "more than its limit"},
		{"prod", "matchLabels:\n      app.kubernetes.io/name: policy", "matchLabels:\n      app.kubernetes.io/name: polic", "Deployment/policy does not select its own pods"},
		{"prod", "- mountPath: /data\n          name: data", "- mountPath: /data\n          name: workspace", "mounts workspace, which does not exist"},
		{"prod", "maxUnavailable: 1\n", "maxUnavailable: 1\n  minAvailable: 1\n", "maxUnavailable 1 and nothing else"},
		{"prod", "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "is not restricted: allowPrivilegeEscalation"},
		{"prod", "type: RuntimeDefault", "type: Unconfined", "is not restricted: seccompProfile"},
		{"prod", "port: ops\n", "port: other\n", "probe of a port that it has"},
		{"prod", "targetPort: http", "targetPort: web", "has no port web"},
		{"prod", "  - port: ops\n", "  - port: opts\n", "a rule for the port opts, which none of its pods has"},
		// Faults against the rules of this repository.
		{"prod", "runAsNonRoot: true", "runAsNonRoot: false", "is not restricted: runAsNonRoot"},
		{"prod", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "can be written"},
		{"prod", "enableServiceLinks: false", "enableServiceLinks: true", "service links"},
		{"prod", "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of Kubernetes"},
		{"prod", "name: ANIMA_DATABASE_URL_FILE", "name: ANIMA_DATABASE_URI_FILE", "ANIMA_DATABASE_URI_FILE is not a setting"},
		{"prod", "mountPath: /secrets/nats\n", "mountPath: /secret/nats\n", "is in no volume"},
		{"prod", "value: /secrets/nats/seed", "value: /secrets/nats/sead", "has no key sead"},
		{"prod", "- name: NODE_NAME\n", "- name: NODE\n", "uses $(NODE_NAME), which is not set before it"},
		{"prod", "serviceAccountName: policy", "serviceAccountName: default", "needs ServiceAccount/default"},
		{"prod", "serviceName: nats-headless", "serviceName: nets", "needs Service/nets"},
		{"prod", "@sha256:", ":1.0.", "is not pinned by digest"},
		{"dev", "image: anima/loop:", "image: anima/loop # ", "names no version"},
		{"prod", "terminationGracePeriodSeconds: ", "terminationGracePeriodSeconds: 3 #", "may need"},
		{"prod", "kind: PodDisruptionBudget", "kind: PodBudget", "has several replicas and no PodDisruptionBudget"},
		{"prod", "unhealthyPodEvictionPolicy: AlwaysAllow", "unhealthyPodEvictionPolicy: IfHealthyBudget", "would block a drain"},
		{"prod", "      preStop:\n", "      postStart:\n", "want a preStop"},
		{"prod", "topologyKey: kubernetes.io/hostname", "topology: kubernetes.io/hostname", "unknown field"},
		{"prod", "- name: ANIMA_NATS_NKEY_FILE\n          value: /secrets/nats/seed", "- name: ANIMA_TOKEN\n          valueFrom: {secretKeyRef: {name: a, key: b}}", "a secret in the environment"},
		{"prod", "  - Egress\n", "", "has no NetworkPolicy of its own"},
		{"prod", "anima_bus_given_up_total", "anima_bus_gave_up_total", "anima_bus_gave_up_total, which no service exports"},
		{"prod", "lagThreshold: \"96\"", "lagThreshold: \"400\"", "three quarters of the 128 slots"},
		{"prod", "nats-headless.anima.svc", "nats.anima.svc", "Service/nats"},
		{"prod", "pod-security.kubernetes.io/enforce: restricted", "pod-security.kubernetes.io/enforce: baseline", "does not enforce"},
		{"prod", "namespace: anima\n", "namespace: other\n", "is in the namespace"},
		{"prod", "secretName: nats-loop", "secretName: nats-lop", "needs Secret/nats-lop"},
		{"prod", "kind: ResourceQuota", "kind: CronJob", "for which there is no check"},
		{"prod", "anima.run/ignored-because", "anima.run/because", "without the other"},
		{"prod", "lame_duck_duration: ", "lame_duck_duration: 9", "may need"},
		{"prod", "cloudnative-pg/postgresql:1.0@", "cloudnative-pg/postgresql@", "Cluster/postgres: the image ghcr.io/cloudnative-pg/postgresql@"},
		{"prod", "priorityClassName: anima-state", "priorityClassName: anima-service", "they would evict it"},
		{"prod", "- 127.0.0.1\n", "- 127.0.0.2\n", "Certificate/nats is not for 127.0.0.1"},
		{"prod", "nodeTaintsPolicy: Honor", "nodeTaintsPolicy: Ignore", "Deployment/loop is spread over nodes that take none of its pods"},
		{"prod", "restartPolicy: Never", "restartPolicy: OnFailure", "want restartPolicy Never"},
		{"prod", "storage: 10Gi", "storage: 100Gi", "ResourceQuota/anima allows claims of 200Gi, and the pods have claims of 460Gi"},
		{"prod", "  dataFrom:\n", "  dataOf:\n", "Secret/postgres-loop has no password, so the role loop has no password"},
	} {
		old := rendered[tt.overlay]
		text := strings.ReplaceAll(old, tt.old, tt.broken)
		if text == old {
			t.Errorf("%s has no %q", tt.overlay, tt.old)
			continue
		}
		var docs [][]byte
		for _, doc := range strings.Split(text, "\n---\n") {
			docs = append(docs, []byte(doc))
		}
		if faults := strings.Join(check(docs, vocabulary, scopeOf(tt.overlay)), "\n"); !strings.Contains(faults, tt.want) {
			t.Errorf("%q for %q: got %q, want a fault with %q", tt.broken, tt.old, faults, tt.want)
		}
	}
}

// TestPins checks that only references with a digest are accepted, and that every image
// of an overlay must have one.
func TestPins(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	pins, err := parsePins("# images\nanima/loop r.example.com:5000/anima/loop:1.2@" + digest + "\n")
	if want := []pin{{"anima/loop", "r.example.com:5000/anima/loop", "1.2", digest}}; err != nil || !slices.Equal(pins, want) {
		t.Errorf("got %v, %v, want %v", pins, err, want)
	}
	for _, bad := range []string{"", "anima/loop", "anima/loop r.example.com/loop:1.2", "anima/loop r.example.com/loop@sha256:12"} {
		if _, err := parsePins(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [pods.yaml]\ntransformers: [" + pinFile + "]\n",
		"pods.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: 'anima/loop:1'}, {name: b, image: 'nats:2'}]}\n" +
			"---\napiVersion: postgresql.cnpg.io/v1\nkind: Cluster\nmetadata: {name: p}\nspec: {imageName: 'x.example.com/postgresql:17'}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines := "anima/loop r.example.com/loop@" + digest + "\n"
	if err := pinImages(dir, strings.NewReader(lines)); err == nil || !strings.Contains(err.Error(), "nats has no digest") || !strings.Contains(err.Error(), "postgresql has no digest") {
		t.Errorf("got %v, want it to name nats and postgresql", err)
	}
	lines += "nats r.example.com/nats@" + digest + "\nx.example.com/postgresql r.example.com/postgresql@" + digest + "\n"
	if err := pinImages(dir, strings.NewReader(lines)); err == nil || !strings.Contains(err.Error(), "r.example.com/postgresql has no tag") {
		t.Errorf("got %v, want it to say that the image of the database has no tag", err)
	}
	lines = strings.Replace(lines, "r.example.com/postgresql@", "r.example.com/postgresql:17.6@", 1)
	if err := pinImages(dir, strings.NewReader(lines)); err != nil {
		t.Fatal(err)
	}
	text := string(bytes.Join(mustRender(t, filesys.MakeFsOnDisk(), dir), nil))
	if n := strings.Count(text, "r.example.com/") - strings.Count(text, "x.example.com/"); n != 3 || strings.Count(text, "@"+digest) != 3 {
		t.Errorf("want three images of the registry by digest, got\n%s", text)
	}
	if want := "imageName: r.example.com/postgresql:17.6@" + digest; !strings.Contains(text, want) {
		t.Errorf("want %s, got\n%s", want, text)
	}
}

// TestSecretsAreIgnored checks that git ignores the secrets that are created for an overlay.
func TestSecretsAreIgnored(t *testing.T) {
	t.Parallel()
	files := tree(t)
	overlays, err := folders(files, "/overlays")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(overlays, "../components/secrets-sops") {
		list, err := files.ReadFile(filepath.Join("/overlays", dir, ".gitignore"))
		if err != nil || !slices.Contains(strings.Fields(string(list)), "/secrets/") {
			t.Errorf("%s: git does not ignore the folder secrets (%v)", dir, err)
		}
	}
}

// TestMigrationsAreCounted checks that the migration Job gets another name with each
// migration that is added. A Job that has ended with an older schema would not run again.
func TestMigrationsAreCounted(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("../../pkg/sqldb/testdata/migrations.txt")
	if err != nil {
		t.Fatal(err)
	}
	job, err := os.ReadFile(root + "/base/migrate/job/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("nameSuffix: \"-%d\"\n", strings.Count(string(list), " postgres ")); !bytes.Contains(job, []byte(want)) {
		t.Errorf("base/migrate/job does not have the number of migrations, want %s", want)
	}
}

// TestGatewayRoutes checks that the gateway routes every path of loop.
func TestGatewayRoutes(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	var route struct {
		Spec struct {
			Rules []struct {
				Matches []struct{ Path struct{ Value string } }
			}
		}
	}
	if data, err := os.ReadFile(root + "/components/ingress-gateway-api/httproute.yaml"); err != nil {
		t.Fatal(err)
	} else if err := yaml.Unmarshal(data, &route); err != nil {
		t.Fatal(err)
	}
	routed := func(path string) bool {
		for _, rule := range route.Spec.Rules {
			for _, m := range rule.Matches {
				if path == m.Path.Value || strings.HasPrefix(path, m.Path.Value+"/") {
					return true
				}
			}
		}
		return false
	}
	paths := 0
	for line := range strings.Lines(string(doc)) {
		if !strings.Contains(line, "| loop, token |") {
			continue
		}
		for _, m := range regexp.MustCompile("(?:GET|PUT|POST|DELETE) (/[^ `?[]*)").FindAllStringSubmatch(line, -1) {
			if paths++; !routed(m[1]) {
				t.Errorf("%s is not routed", m[1])
			}
		}
	}
	if paths == 0 {
		t.Error("docs/http.md has no route of loop that can be parsed")
	}
}

// TestConnectionsToPostgres checks that the pooler of prod accepts sessions of pkg/sqldb,
// and that it and the database have a connection for each that the replicas may open.
func TestConnectionsToPostgres(t *testing.T) {
	t.Parallel()
	source := func(file, pattern string) (found []string) {
		text, err := os.ReadFile("../../pkg/sqldb/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
		if len(found) == 0 {
			t.Fatalf("pkg/sqldb/%s has nothing like %s", file, pattern)
		}
		return found
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	each := number(source("sqldb.go", `opts\.MaxConns = (\d+)`)[0])
	replicas, poolers := map[string]int{}, 0
	database, pooler := map[string]string{}, map[string]string{}
	for _, doc := range mustRender(t, tree(t), "/overlays/prod") {
		var v struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Replicas, MaxReplicaCount int
				Postgresql, PGBouncer     struct{ Parameters map[string]string }
				Template                  struct {
					Metadata struct{ Labels map[string]string }
				}
			}
		}
		if err := yaml.Unmarshal(doc, &v); err != nil {
			t.Fatal(err)
		}
		switch name := v.Metadata.Name; v.Kind {
		case "Cluster":
			database = v.Spec.Postgresql.Parameters
		case "Pooler":
			pooler = v.Spec.PGBouncer.Parameters
			poolers++
		case "Deployment":
			if v.Spec.Template.Metadata.Labels["anima.run/postgres"] == "client" {
				replicas[name] = max(replicas[name], v.Spec.Replicas)
			}
		case "ScaledObject":
			replicas[name] = v.Spec.MaxReplicaCount
		}
	}
	if len(replicas) != 6 || poolers != 1 {
		t.Fatalf("got %d services %v and %d poolers, want 6 and one", len(replicas), replicas, poolers)
	}
	most, all := 0, 0
	for _, n := range replicas {
		n = each * (n + 1) // one more in a rolling update
		most, all = max(most, n), all+n
	}
	if got := number(pooler["default_pool_size"]); got < most {
		t.Errorf("the pooler has %d connections for a role, and a service may open %d", got, most)
	}
	if got := number(database["max_connections"]); got < all {
		t.Errorf("the database has %d connections, and the services may open %d", got, all)
	}
	accepted := append(strings.Split(pooler["ignore_startup_parameters"], ","), "application_name")
	for _, name := range source("postgres.go", `RuntimeParams(?:\[|, )"(\w+)"`) {
		if !slices.Contains(accepted, name) {
			t.Errorf("the pooler refuses the parameter %s, which pkg/sqldb sets", name)
		}
	}
}

// TestPostgresIsVerified checks that all clients of the Postgres of prod verify its
// certificate.
func TestPostgresIsVerified(t *testing.T) {
	t.Parallel()
	clients := 0
	for _, doc := range mustRender(t, tree(t), "/overlays/prod") {
		var v struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct{ Template corev1.PodTemplateSpec }
		}
		if err := yaml.Unmarshal(doc, &v); err != nil || v.Spec.Template.Labels["anima.run/postgres"] != "client" { // other kinds have other fields
			continue
		}
		for _, c := range v.Spec.Template.Spec.Containers {
			clients++
			if !slices.Contains(c.Env, corev1.EnvVar{Name: "PGSSLMODE", Value: "verify-full"}) {
				t.Errorf("%s/%s %s does not verify Postgres", v.Kind, v.Metadata.Name, c.Name)
			}
		}
	}
	if clients != 12 {
		t.Errorf("got %d clients, want those of six services and of their migrations", clients)
	}
}

// TestLargerStreams checks that the patch of the README for larger claims of NATS suits
// prod, whose quota it has to raise.
func TestLargerStreams(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	patches := regexp.MustCompile("(?s)```yaml\n(patches:\n.*?volumeClaimTemplates.*?)```").FindSubmatch(readme)
	if patches == nil {
		t.Fatal("the README has no patch of the claims")
	}
	files := tree(t)
	if err := files.WriteFile("/overlays/large/kustomization.yaml", append([]byte("resources: [../prod]\n"), patches[1]...)); err != nil {
		t.Fatal(err)
	}
	for _, f := range check(mustRender(t, files, "/overlays/large"), words(t), prod) {
		t.Error(f)
	}
}
