package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

type cronField struct {
	name      string
	low, high int
	names     []string // names of low, low+1, …
	note      string   // appended to the error for a number out of range
}

// cronFields returns the five fields of crontab(5), without day of week 7 for Sunday,
// which the scheduler does not support.
func cronFields() []cronField {
	return []cronField{
		{name: "minute", low: 0, high: 59},
		{name: "hour", low: 0, high: 23},
		{name: "day of month", low: 1, high: 31},
		{name: "month", low: 1, high: 12, names: strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
		{name: "day of week", low: 0, high: 6, names: strings.Fields("sun mon tue wed thu fri sat"), note: " (Sunday is 0)"},
	}
}

// parseCron validates an expression and returns it with single spaces between its fields.
// Its errors name the field and the range.
func parseCron(text string) (string, error) {
	parts := strings.Fields(text)
	fields := cronFields()
	if len(parts) != len(fields) {
		return "", fmt.Errorf("has %d fields, wants 5: minute, hour, day of month, month, day of week", len(parts))
	}
	for i, f := range fields {
		for item := range strings.SplitSeq(parts[i], ",") {
			if err := f.check(item); err != nil {
				return "", fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	clean := strings.Join(parts, " ")
	schedule, err := cron.ParseStandard(clean)
	if err != nil {
		return "", err
	}
	// The start date is arbitrary but fixed: Next searches five years ahead, and an
	// expression that ever matches does so within this time.
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return "", fmt.Errorf("%q never occurs; check day of month and month", clip(clean))
	}
	return clean, nil
}

// check validates one item: *, n or n-m, with an optional step after a slash.
func (f cronField) check(item string) error {
	span, step, stepped := strings.Cut(item, "/")
	if stepped {
		n, err := number(step)
		if err != nil || n < 1 || n > f.high {
			return fmt.Errorf("step %q must be from 1 to %d", clip(step), f.high)
		}
	}
	if span == "*" || span == "?" {
		return nil
	}
	from, to, ranged := strings.Cut(span, "-")
	low, err := f.value(from)
	if err != nil || !ranged {
		return err
	}
	high, err := f.value(to)
	if err != nil {
		return err
	}
	if low > high {
		return fmt.Errorf("range %q runs backwards", clip(span))
	}
	return nil
}

func (f cronField) value(s string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(s)); i >= 0 {
		return f.low + i, nil
	}
	n, err := number(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", clip(s))
	}
	if n < f.low || n > f.high {
		return 0, fmt.Errorf("%d is out of range %d to %d%s", n, f.low, f.high, f.note)
	}
	return n, nil
}

// number parses a number of digits only; Atoi would accept a sign.
func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int(n), err
}
