package oteltest

import (
	"errors"
	"net"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// Drain is a collector that discards requests without decoding them, for benchmarks that
// must not measure the collector.
type Drain struct{ endpoint string }

// Sink starts a Drain on 127.0.0.1 that stops with the test.
func Sink(t testing.TB) *Drain {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := drain()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("sink: %v", err)
		}
	})
	return &Drain{endpoint: "http://" + l.Addr().String()}
}

// ServeSink runs a [Drain] on l until l fails, for a separate process.
func ServeSink(l net.Listener) error { return drain().Serve(l) }

func drain() *grpc.Server {
	server := grpc.NewServer(grpc.ForceServerCodecV2(unread{}))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: collector.TraceService_ServiceDesc.ServiceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: "Export", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				var nothing struct{}
				if err := stream.RecvMsg(&nothing); err != nil {
					return err
				}
				return stream.SendMsg(&nothing)
			},
		}},
	}, nil)
	return server
}

// Lookup is an environment that only contains this sink's endpoint.
func (d *Drain) Lookup(name string) (string, bool) {
	if name != "OTEL_EXPORTER_OTLP_ENDPOINT" {
		return "", false
	}
	return d.endpoint, true
}

// unread is a codec that decodes nothing and encodes an empty message, which in OTLP
// means that all spans were accepted.
type unread struct{}

var _ encoding.CodecV2 = unread{}

func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil }
func (unread) Unmarshal(mem.BufferSlice, any) error { return nil }
func (unread) Name() string                         { return "proto" }
