package mcp

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Methods of servers that are used.
const (
	methodPing    = "ping"
	methodChanged = "notifications/tools/list_changed"
)

// onlyUsed refuses the requests and notifications of a server that are not used. The
// library executes its handlers in goroutines of its own and does not expect hostile
// servers: a panic in one of them, as by missing parameters, would end this process.
func onlyUsed(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if method != methodPing && method != methodChanged {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client does not support the method"}
		}
		return next(ctx, method, req)
	}
}

// maxAsked is the largest number of requests of a program that have no answer yet.
const maxAsked = 8

var errAsks = errors.New("it sends requests and does not read the answers")

// bounded is the transport of a program. It limits what waits to be handled, because the
// queue of the library has no limit, and a program writes faster than its messages are
// handled: notifications that are not used are dropped, one change of the list is handled
// at a time, and a program with too many requests is disconnected.
type bounded struct {
	sdk.Transport

	changing *atomic.Bool // a change of the list waits to be handled
}

// Connect implements [sdk.Transport].
func (b bounded) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := b.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &boundedConn{Connection: c, changing: b.changing}, nil
}

type boundedConn struct {
	sdk.Connection

	changing *atomic.Bool
	asked    atomic.Int64
}

// Read implements [sdk.Connection].
func (c *boundedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		m, err := c.Connection.Read(ctx)
		r, request := m.(*jsonrpc.Request)
		switch {
		case err != nil || !request:
			return m, err
		case r.IsCall() && c.asked.Add(1) > maxAsked:
			return nil, errAsks
		case r.IsCall() || r.Method == methodChanged && c.changing.CompareAndSwap(false, true):
			return m, nil
		}
	}
}

// Write implements [sdk.Connection].
func (c *boundedConn) Write(ctx context.Context, m jsonrpc.Message) error {
	if _, answer := m.(*jsonrpc.Response); answer {
		defer c.asked.Add(-1)
	}
	return c.Connection.Write(ctx, m)
}
