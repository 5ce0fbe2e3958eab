package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/services/treasury/devchain"
)

// devChain is the chain of anima up where no other one is configured. It starts with its
// first request, so that an installation without USDC has only its port.
type devChain struct {
	server *devchain.Server
	stop   context.CancelFunc
	done   sync.WaitGroup
	err    error // of the server; valid after done
}

// wantsDevChain reports whether no setting says which chain to use. An empty
// ANIMA_TREASURY_RPC_URL means none.
func wantsDevChain(lookup config.Lookup) bool {
	for _, name := range []string{"ANIMA_TREASURY_RPC_URL", "ANIMA_TREASURY_RPC_URL_FILE", "ANIMA_TREASURY_NETWORK"} {
		if _, set := lookup(name); set {
			return false
		}
	}
	return true
}

// startDevChain opens the dev chain of s if it wants one, and has treasury use it. Its
// blocks are in the data folder, as the ledger is.
func (s *suite) startDevChain(ctx context.Context) error {
	if !wantsDevChain(s.lookup) {
		return nil
	}
	server, err := devchain.Listen(ctx, "0", devchain.Options{Dir: filepath.Join(s.dir, "devchain"), Log: s.log})
	if err != nil {
		return fmt.Errorf("open the port of the dev chain: %w; ANIMA_TREASURY_RPC_URL= disables it", err)
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.chain = &devChain{server: server, stop: stop}
	s.chain.done.Go(func() { s.chain.err = server.Serve(running) })
	s.lookup = layered(lookupIn(map[string]string{
		"ANIMA_TREASURY_RPC_URL": server.URL(), "ANIMA_TREASURY_NETWORK": "dev", "ANIMA_TREASURY_CHAIN_LAZY": "true",
	}), s.lookup, lookupIn(map[string]string{"ANIMA_TREASURY_TOPUP_URL": "self"}))
	return nil
}

// url returns the address of the JSON-RPC, "" without a dev chain.
func (c *devChain) url() string {
	if c == nil {
		return ""
	}
	return c.server.URL()
}

// close stops the chain, after treasury.
func (c *devChain) close() error {
	c.stop()
	c.done.Wait()
	return c.err
}
