//go:build !failpoint

package loop

func addFailpoints(*handlers) {}
