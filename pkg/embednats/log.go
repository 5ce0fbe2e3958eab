package embednats

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// logger forwards the log of the server.
type logger struct {
	log   *slog.Logger
	fatal chan string // receives the first fatal line

	failed func(text string) // called with the text of a failed write
}

func (l *logger) line(level slog.Level, format string, v []any) string {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	l.log.Log(context.Background(), level, "nats server", "text", text)
	return text
}

func (l *logger) Noticef(format string, v ...any) { l.line(slog.LevelInfo, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.line(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any) {
	// After a failed write the server refuses all further writes of the stream. The log
	// line is the only notification of it.
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
