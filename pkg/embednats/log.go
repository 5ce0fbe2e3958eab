package embednats

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// logger is the server's log, passed on.
type logger struct {
	log   *slog.Logger
	fatal chan string // the first line of what stops the server

	failed func(text string) // told of writes that failed
}

func (l *logger) line(level slog.Level, format string, v []any) string {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	l.log.Log(context.Background(), level, "nats server", "text", text)
	return text
}

func (l *logger) Noticef(format string, v ...any) { l.line(slog.LevelInfo, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.line(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any) {
	// A stream that could not be written once refuses all writes from then on, and the
	// server has no other way to tell of each.
	if text := l.line(slog.LevelError, format, v); strings.Contains(strings.ToLower(text), "critical write error") {
		l.failed(text)
	}
}

func (l *logger) Debugf(format string, v ...any) { l.line(slog.LevelDebug, format, v) }
func (l *logger) Tracef(format string, v ...any) { l.line(slog.LevelDebug, format, v) }

func (l *logger) Fatalf(format string, v ...any) {
	text := l.line(slog.LevelError, format, v)
	select {
	case l.fatal <- text:
	default:
	}
}
