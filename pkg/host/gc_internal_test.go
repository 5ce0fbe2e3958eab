package host

import (
	"testing"
	"testing/fstest"
)

func TestGarbage(t *testing.T) {
	t.Parallel()
	files := func(pairs ...string) fstest.MapFS {
		m := fstest.MapFS{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
		}
		return m
	}
	type env map[string]string
	const own, top = "0::/kubepods/pod1\n", "0::/\n"
	for name, tt := range map[string]struct {
		env     env
		root    fstest.MapFS
		percent int
		limit   int64
	}{
		"no cgroups":         {nil, files(), gcPercent, 0},
		"no bound":           {nil, files("proc/self/cgroup", top, "sys/fs/cgroup/memory.max", "max\n"), gcPercent, 0},
		"a container's":      {nil, files("proc/self/cgroup", top, "sys/fs/cgroup/memory.max", "1000\n"), gcPercent, 900},
		"its own":            {nil, files("proc/self/cgroup", own, "sys/fs/cgroup/kubepods/pod1/memory.max", "2000\n"), gcPercent, 1800},
		"of the one above":   {nil, files("proc/self/cgroup", own, "sys/fs/cgroup/kubepods/memory.max", "1000\n", "sys/fs/cgroup/kubepods/pod1/memory.max", "2000\n"), gcPercent, 900},
		"a name outside":     {nil, files("proc/self/cgroup", own, "sys/fs/cgroup/memory.max", "1000\n"), gcPercent, 900},
		"version 1":          {nil, files("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/1\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n"), gcPercent, 3600},
		"version 1, none":    {nil, files("proc/self/cgroup", "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), gcPercent, 0},
		"another controller": {nil, files("proc/self/cgroup", "5:cpu:/\n", "sys/fs/cgroup/memory.max", "1000\n"), gcPercent, 0},
		"both are set":       {env{"GOGC": "50", "GOMEMLIMIT": "off"}, files("proc/self/cgroup", top, "sys/fs/cgroup/memory.max", "1000\n"), 0, 0},
		"one is set":         {env{"GOMEMLIMIT": "1GiB"}, files("proc/self/cgroup", top, "sys/fs/cgroup/memory.max", "1000\n"), gcPercent, 0},
	} {
		percent, limit := garbage(func(n string) (string, bool) { v, set := tt.env[n]; return v, set }, tt.root)
		if percent != tt.percent || limit != tt.limit {
			t.Errorf("%s: GOGC %d, GOMEMLIMIT %d, want %d, %d", name, percent, limit, tt.percent, tt.limit)
		}
	}
}
