package main

import "syscall"

// lonely gives Jaeger a process group of its own, so that an interrupt from the
// keyboard reaches it once, and ends it with this process.
func lonely() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
