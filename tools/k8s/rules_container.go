package main

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

func (m *manifests) checkContainer(w workload, c corev1.Container, volumes map[string]*corev1.Volume, serving bool) {
	who := w.id + " " + c.Name
	name, digest, byDigest := strings.Cut(c.Image, "@")
	switch {
	case byDigest && !digestForm.MatchString(digest):
		m.fault("%s: the image %s has an invalid digest", who, c.Image)
	case !byDigest && m.scope.digests:
		m.fault("%s: the image %s is not pinned by digest", who, c.Image)
	case !byDigest && m.scope.secrets && (nameOf(name) == name || strings.HasSuffix(name, ":latest")):
		m.fault("%s: the image %s names no version", who, c.Image)
	}
	if prefixes := strings.Fields(m.config["allowed-registries/prefixes"]); len(prefixes) > 0 && byDigest && !hasAnyPrefix(name, prefixes) {
		m.fault("%s: the image %s is not from an allowed registry: its pods would be refused", who, c.Image)
	}
	if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		m.fault("%s: the root file system can be written", who)
	}
	m.checkResources(who, c)
	for _, p := range c.Ports {
		if faults := validation.IsValidPortName(p.Name); len(faults) > 0 {
			m.fault("%s: the port %q has no valid name: %s", who, p.Name, strings.Join(faults, ", "))
		}
	}
	if serving {
		m.checkProbes(who, c)
		if (c.Lifecycle == nil || c.Lifecycle.PreStop == nil) && m.served(w) {
			m.fault("%s: a Service may send requests to it after its exit: want a preStop", who)
		}
	}
	for _, v := range c.VolumeMounts {
		if volumes[v.Name] == nil {
			m.fault("%s mounts %s, which does not exist", who, v.Name)
		}
	}
	if m.scope.digests && c.ImagePullPolicy != corev1.PullAlways {
		m.fault("%s: want imagePullPolicy Always", who)
	}
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef != nil {
			m.needConfig(w, from.ConfigMapRef.Name)
		}
		if from.SecretRef != nil {
			m.fault("%s takes its environment from a secret: mount it as a file", who)
		}
	}
	for i, e := range c.Env {
		m.checkEnv(who, c, e, volumes)
		for _, ref := range expansion.FindAllStringSubmatch(e.Value, -1) {
			if !slices.ContainsFunc(c.Env[:i], func(e corev1.EnvVar) bool { return e.Name == ref[1] }) {
				m.fault("%s: %s uses %s, which is not set before it", who, e.Name, ref[0])
			}
		}
	}
}

func hasAnyPrefix(s string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) })
}

func (m *manifests) checkResources(who string, c corev1.Container) {
	r := c.Resources
	if r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
		m.fault("%s: it needs requests of cpu and memory and a limit of memory", who)
	}
	if _, ok := r.Limits[corev1.ResourceCPU]; ok {
		m.fault("%s: a limit of cpu throttles Go: leave it out", who)
	}
	for name, limit := range r.Limits {
		if request, ok := r.Requests[name]; ok && request.Cmp(limit) > 0 {
			m.fault("%s: it requests %s of %s, more than its limit of %s", who, request.String(), name, limit.String())
		}
	}
	for _, e := range c.Env {
		if e.Name != "GOMEMLIMIT" || e.ValueFrom != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(e.Value, "MiB"), 10, 64)
		share := float64(n<<20) / float64(r.Limits.Memory().Value())
		if err != nil || share < 0.85 || share > 0.95 {
			m.fault("%s: GOMEMLIMIT is %s, want nine tenths of %s, in MiB", who, e.Value, r.Limits.Memory())
		}
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" }) && nameOf(path.Base(c.Image)) != "postgres" {
		m.fault("%s: GOMEMLIMIT is not set, so Go does not use the limit of memory", who)
	}
}

func (m *manifests) checkProbes(who string, c corev1.Container) {
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		ok := p != nil
		switch {
		case !ok:
		case p.HTTPGet != nil:
			ok = containerHasPort(c, p.HTTPGet.Port)
		case p.TCPSocket != nil:
			ok = containerHasPort(c, p.TCPSocket.Port)
		case p.GRPC != nil:
			ok = containerHasPort(c, intstr.FromInt32(p.GRPC.Port))
		default:
			ok = p.Exec != nil && len(p.Exec.Command) > 0
		}
		if !ok {
			m.fault("%s: there is no %s probe of a port that it has", who, name)
		}
	}
	if c.LivenessProbe != nil && c.ReadinessProbe != nil && handler(c.LivenessProbe) == handler(c.ReadinessProbe) {
		m.fault("%s: liveness and readiness have the same probe: a container that is not ready would be killed", who)
	}
}

func handler(p *corev1.Probe) string {
	text, err := yaml.Marshal(p.ProbeHandler)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (m *manifests) checkEnv(who string, c corev1.Container, e corev1.EnvVar, volumes map[string]*corev1.Volume) {
	if settingOf.MatchString(e.Name) && !slices.Contains(m.words.settings, e.Name) {
		m.fault("%s: %s is not a setting", who, e.Name)
	}
	if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
		m.fault("%s: %s is a secret in the environment: mount it as a file", who, e.Name)
	}
	if !strings.HasSuffix(e.Name, "_FILE") && e.Name != "ANIMA_NATS_CA" && e.Name != "PGSSLROOTCERT" {
		return
	}
	mount := slices.IndexFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool { return strings.HasPrefix(e.Value, v.MountPath+"/") })
	if mount < 0 {
		m.fault("%s: the file of %s, %s, is in no volume", who, e.Name, e.Value)
		return
	}
	v := volumes[c.VolumeMounts[mount].Name]
	if v == nil || v.Secret == nil || v.Secret.Optional != nil && *v.Secret.Optional {
		return
	}
	if e.Name == "PGSSLROOTCERT" && v.Secret.SecretName == "postgres-tls" && !m.ids["StatefulSet/postgres"] && !m.ids["Cluster/postgres"] {
		m.fault("%s: it verifies Postgres with the authority of the namespace, which has issued no certificate to an external Postgres", who)
	}
	key := strings.TrimPrefix(e.Value, c.VolumeMounts[mount].MountPath+"/")
	for _, i := range v.Secret.Items {
		if i.Path == key {
			key = i.Key
		}
	}
	if id := "Secret/" + v.Secret.SecretName; m.ids[id] && !m.open[id] && !slices.Contains(m.keys[id], key) {
		m.fault("%s: %s has no key %s for %s", who, id, key, e.Name)
	}
}
