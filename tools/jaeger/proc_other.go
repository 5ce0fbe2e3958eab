//go:build !linux

package main

import "syscall"

func lonely() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
