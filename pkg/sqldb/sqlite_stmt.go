package sqldb

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"zombiezen.com/go/sqlite"
)

// start binds the arguments of a statement.
func (c *liteConn) start(query string, args []any) (*liteStmt, error) {
	args, err := plain(args)
	if err != nil {
		return nil, err
	}
	s, err := c.stmt(query, len(args) > 0)
	if err != nil {
		return nil, err
	}
	s.open = true
	for i, at := range s.params {
		if at >= len(args) {
			c.done(s, nil)
			return nil, fmt.Errorf("the statement has a parameter $%d and %d arguments were given", at+1, len(args))
		}
		switch a := args[at].(type) {
		case string:
			s.raw.BindText(i+1, a)
		case int64:
			s.raw.BindInt64(i+1, a)
		case bool:
			s.raw.BindBool(i+1, a)
		case float64:
			s.raw.BindFloat(i+1, a)
		case []byte:
			if a == nil {
				s.raw.BindNull(i + 1)
			} else {
				s.raw.BindBytes(i+1, a)
			}
		default:
			s.raw.BindNull(i + 1)
		}
	}
	return s, nil
}

// done ends the use of a statement: it resets a kept one and finalizes any other.
func (c *liteConn) done(s *liteStmt, args []any) {
	s.open = false
	if !s.kept {
		_ = s.raw.Finalize() // repeats the error of its last run
		return
	}
	_ = s.raw.Reset() // repeats the error of its last run
	bound := 0
	for _, a := range args {
		switch a := a.(type) {
		case string:
			bound += len(a)
		case []byte:
			bound += len(a)
		}
	}
	if bound > maxBound {
		_ = s.raw.ClearBindings()
	}
}

// stmt returns the compiled statement for query. With keep it is cached, unless the
// cached one is in use.
func (c *liteConn) stmt(query string, keep bool) (*liteStmt, error) {
	s := c.stmts[query]
	if s != nil && !s.open {
		return s, nil
	}
	if s != nil || !keep {
		return c.compile(query)
	}
	if len(c.stmts) >= maxStmts {
		c.evict()
	}
	s, err := c.compile(query)
	if err != nil {
		return nil, err
	}
	s.kept = true
	c.stmts[query] = s
	return s, nil
}

func (c *liteConn) compile(query string) (*liteStmt, error) {
	raw, rest, err := c.raw.PrepareTransient(strings.TrimSpace(limits.ReplaceAllString(query, "limit cast($1 as integer)")))
	if err != nil {
		return nil, liteErr(err)
	}
	s := &liteStmt{raw: raw, params: make([]int, raw.BindParamCount())}
	if rest > 0 {
		return nil, errors.Join(errors.New("a statement with rows or arguments must be the only one of its query"), raw.Finalize())
	}
	for i := range s.params {
		// SQLite treats $2 as a name and numbers parameters in the order of their
		// occurrence.
		name := raw.BindParamName(i + 1)
		n, err := strconv.Atoi(strings.TrimPrefix(name, "$"))
		if err != nil || n < 1 || name[0] != '$' {
			return nil, errors.Join(fmt.Errorf("parameter %q: write $1, $2", name), raw.Finalize())
		}
		s.params[i] = n - 1
	}
	return s, nil
}

// evict removes an arbitrary statement that is not in use.
func (c *liteConn) evict() {
	for query, s := range c.stmts {
		if !s.open {
			_ = s.raw.Finalize() // repeats the error of its last run
			delete(c.stmts, query)
			return
		}
	}
}

func (s *liteStmt) count() int { return s.raw.ColumnCount() }

func (s *liteStmt) kind(i int) kind {
	switch s.raw.ColumnType(i) {
	case sqlite.TypeInteger:
		return integer
	case sqlite.TypeFloat:
		return real
	case sqlite.TypeText:
		return text
	case sqlite.TypeBlob:
		return blob
	default:
		return null
	}
}

func (s *liteStmt) integer(i int) int64 { return s.raw.ColumnInt64(i) }
func (s *liteStmt) real(i int) float64  { return s.raw.ColumnFloat(i) }

func (s *liteStmt) text(i int, was string) string {
	var b [64]byte // a longer text is rarely equal, and comparing needs a copy too
	if n := len(was); n > 0 && n <= len(b) && s.raw.ColumnLen(i) == n && string(b[:s.raw.ColumnBytes(i, b[:])]) == was {
		return was
	}
	return s.raw.ColumnText(i)
}

func (s *liteStmt) bytes(i int) []byte {
	b := make([]byte, s.raw.ColumnLen(i))
	return b[:s.raw.ColumnBytes(i, b)]
}
