// Package clustertest runs a cluster of three NATS servers. It is for tests only; a
// process of this project never runs a cluster.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// patience is the time limit for a server to become ready.
const patience = 30 * time.Second

// Start starts three JetStream servers that replicate to each other, with their streams
// below dir. They run until [Stop]. Leader election takes seconds, so tests share a
// cluster.
func Start(dir string, syncAlways bool) ([]*server.Server, error) {
	var all []*server.Server
	var routes []*url.URL // each server gets all routes, because their number determines the quorum
	var ports []int
	for range 3 {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
	}
	for i := range 3 {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprint("n", i), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			JetStream: true, StoreDir: filepath.Join(dir, fmt.Sprint(i)), DisableJetStreamBanner: true, NoLog: true, NoSigs: true, SyncAlways: syncAlways,
			Cluster: server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
			LameDuckGracePeriod: 500 * time.Millisecond, LameDuckDuration: time.Second,
		})
		if err != nil {
			Stop(all)
			return nil, err
		}
		s.Start()
		all = append(all, s)
	}
	for _, s := range all {
		if !s.ReadyForConnections(patience) {
			Stop(all)
			return nil, errors.New("the cluster is not ready")
		}
	}
	return all, nil
}

// Stop shuts servers down concurrently.
func Stop(servers []*server.Server) {
	for _, s := range servers {
		s.Shutdown()
	}
	for _, s := range servers {
		s.WaitForShutdown()
	}
}

// FreePort returns a port of this machine that is not in use.
func FreePort() (int, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, fmt.Errorf("%s is not a TCP address", l.Addr())
	}
	return a.Port, nil
}
