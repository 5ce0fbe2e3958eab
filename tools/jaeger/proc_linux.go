package main

import "syscall"

// lonely returns attributes that start Jaeger in a new process group, so that an
// interrupt from the keyboard reaches it only once, through this process, and that kill
// it when this process ends.
func lonely() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
