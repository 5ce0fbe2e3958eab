package oteltest

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Drain is a collector that discards requests without decoding them, for benchmarks that
// must not measure the collector.
type Drain struct{ endpoint }

// Sink starts a Drain on 127.0.0.1 that stops with the test.
func Sink(t testing.TB) *Drain {
	t.Helper()
	return &Drain{serve(t, drain())}
}

// ServeSink runs a [Drain] on l until l fails, for a separate process.
func ServeSink(l net.Listener) error { return drain().Serve(l) }

func drain() *grpc.Server {
	return grpc.NewServer(grpc.ForceServerCodecV2(unread{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var nothing struct{}
		if err := stream.RecvMsg(&nothing); err != nil {
			return err
		}
		return stream.SendMsg(&nothing)
	}))
}

// unread is a codec that decodes nothing and encodes an empty message, which in OTLP
// means that all spans were accepted.
type unread struct{}

var _ encoding.CodecV2 = unread{}

func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil }
func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }
func (unread) Name() string                         { return "proto" }
