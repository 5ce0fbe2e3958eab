package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

type cronField struct {
	name      string
	low, high int
	names     []string // names of low, low+1, …
	note      string   // appended to the error for a number out of range
}

// cronFields returns the five fields of crontab(5), without day of week 7 for Sunday,
// which the parser that computes the times does not support.
func cronFields() []cronField {
	return []cronField{
		{name: "minute", low: 0, high: 59},
		{name: "hour", low: 0, high: 23},
		{name: "day of month", low: 1, high: 31},
		{name: "month", low: 1, high: 12, names: strings.Fields("jan feb mar apr may jun jul aug sep oct nov dec")},
		{name: "day of week", low: 0, high: 6, names: strings.Fields("sun mon tue wed thu fri sat"), note: " (Sunday is 0)"},
	}
}

// ParseCron validates a cron expression and returns it with single spaces between its
// fields. Its errors name the field and the range. Policy, loop and heartbeat accept the
// expressions that it accepts (docs/reference/heartbeat.md, Cron). It does not detect an
// expression that never fires, such as 0 0 30 2 *.
func ParseCron(text string) (string, error) {
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
	return strings.Join(parts, " "), nil
}

// check validates one item: *, ?, n or n-m, with an optional step after a slash.
func (f cronField) check(item string) error {
	span, step, stepped := strings.Cut(item, "/")
	if stepped {
		// ParseUint refuses a sign, which Atoi would accept.
		if n, err := strconv.ParseUint(step, 10, 31); err != nil || n < 1 || int(n) > f.high {
			return fmt.Errorf("step %.40q must be from 1 to %d", step, f.high)
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
	if err == nil && low > high {
		err = fmt.Errorf("range %.40q runs backwards", span)
	}
	return err
}

func (f cronField) value(s string) (int, error) {
	if i := slices.Index(f.names, strings.ToLower(s)); i >= 0 {
		return f.low + i, nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number", s)
	}
	if v := int(n); v < f.low || v > f.high {
		return 0, fmt.Errorf("%d is out of range %d to %d%s", v, f.low, f.high, f.note)
	}
	return int(n), nil
}
