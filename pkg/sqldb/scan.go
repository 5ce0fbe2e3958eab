package sqldb

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
)

// kind is the type of a column's value in one row.
type kind uint8

const (
	null kind = iota
	integer
	real
	text
	blob
)

// columns holds the values of the current row of a statement, indexed from 0.
type columns interface {
	count() int
	kind(i int) kind
	integer(i int) int64 // the value if kind is integer
	real(i int) float64  // the value if kind is real
	// text returns the value if kind is text or blob. It returns was, without a copy, if
	// the two are equal: consecutive rows that are scanned into the same variables often
	// share texts.
	text(i int, was string) string
	bytes(i int) []byte // the value if kind is text or blob, as a copy
}

// Null is a value of type T or NULL, as an argument or a destination of Scan. The zero
// Null is NULL.
type Null[T any] struct {
	V     T
	Valid bool // V is not NULL
}

func (n *Null[T]) scan(c columns, i int) error {
	if c.kind(i) == null {
		*n = Null[T]{}
		return nil
	}
	n.Valid = true
	return scanInto(c, i, &n.V)
}

func (n Null[T]) argument() any {
	if !n.Valid {
		return nil
	}
	return n.V
}

type nullable interface{ scan(c columns, i int) error }

type argument interface{ argument() any }

// scanRow copies the row into dest, which must have a pointer for each column.
func scanRow(c columns, dest []any) error {
	if n := c.count(); n != len(dest) {
		return fmt.Errorf("scan: the row has %d columns, not %d", n, len(dest))
	}
	for i, d := range dest {
		if err := scanInto(c, i, d); err != nil {
			return fmt.Errorf("scan column %d: %w", i+1, err)
		}
	}
	return nil
}

func scanInto(c columns, i int, dest any) (err error) {
	switch d := dest.(type) {
	case *string:
		*d, err = stringOf(c, i, *d)
	case *int64:
		*d, err = integerOf(c, i, 64)
	case *int:
		var n int64
		n, err = integerOf(c, i, strconv.IntSize)
		*d = int(n)
	case *bool:
		*d, err = boolOf(c, i)
	case *[]byte:
		*d, err = bytesOf(c, i)
	case *float64:
		*d, err = realOf(c, i)
	case *any:
		*d = anyOf(c, i)
	case nullable:
		err = d.scan(c, i)
	default:
		err = scanReflect(c, i, reflect.ValueOf(dest))
	}
	return err
}

// scanReflect scans into named types, other sizes of numbers, and pointers. NULL sets a
// pointer to nil.
func scanReflect(c columns, i int, dest reflect.Value) error {
	if dest.Kind() != reflect.Pointer || dest.IsNil() {
		return fmt.Errorf("into %s: not a pointer to a value", dest.Kind())
	}
	d := dest.Elem()
	switch {
	case d.Kind() == reflect.String:
		t, err := stringOf(c, i, d.String())
		d.SetString(t)
		return err
	case d.Kind() == reflect.Bool:
		b, err := boolOf(c, i)
		d.SetBool(b)
		return err
	case d.Kind() == reflect.Slice && d.Type().Elem().Kind() == reflect.Uint8:
		b, err := bytesOf(c, i)
		d.SetBytes(b)
		return err
	case d.CanInt():
		n, err := integerOf(c, i, d.Type().Bits())
		d.SetInt(n)
		return err
	case d.CanUint():
		n, err := integerOf(c, i, 64)
		if err == nil && (n < 0 || d.OverflowUint(uint64(n))) {
			return fmt.Errorf("%d does not fit into %s", n, d.Type())
		}
		d.SetUint(uint64(n))
		return err
	case d.CanFloat():
		f, err := realOf(c, i)
		d.SetFloat(f)
		return err
	case d.Kind() == reflect.Pointer && c.kind(i) == null:
		d.SetZero()
		return nil
	case d.Kind() == reflect.Pointer:
		d.Set(reflect.New(d.Type().Elem()))
		return scanInto(c, i, d.Interface())
	}
	return fmt.Errorf("into %s: not a supported type", d.Type())
}

func stringOf(c columns, i int, was string) (string, error) {
	switch c.kind(i) {
	case text, blob:
		return c.text(i, was), nil
	case integer:
		return strconv.FormatInt(c.integer(i), 10), nil
	case real:
		return strconv.FormatFloat(c.real(i), 'g', -1, 64), nil
	default:
	}
	return "", errNull
}

func bytesOf(c columns, i int) ([]byte, error) {
	switch c.kind(i) {
	case null:
		return nil, nil
	case text, blob:
		return c.bytes(i), nil
	default:
	}
	s, err := stringOf(c, i, "")
	return []byte(s), err
}

func integerOf(c columns, i, bits int) (int64, error) {
	switch c.kind(i) {
	case integer:
		n := c.integer(i)
		if shift := 64 - bits; n<<shift>>shift != n {
			return 0, fmt.Errorf("%d does not fit into %d bits", n, bits)
		}
		return n, nil
	case text:
		return strconv.ParseInt(c.text(i, ""), 10, bits)
	case real:
		if f := c.real(i); f == float64(int64(f)) {
			return int64(f), nil
		}
	case null:
		return 0, errNull
	default:
	}
	return 0, errors.New("not an integer")
}

func boolOf(c columns, i int) (bool, error) {
	switch c.kind(i) {
	case integer:
		return c.integer(i) != 0, nil
	case text:
		return strconv.ParseBool(c.text(i, ""))
	case null:
		return false, errNull
	default:
	}
	return false, errors.New("not a boolean")
}

func realOf(c columns, i int) (float64, error) {
	switch c.kind(i) {
	case real:
		return c.real(i), nil
	case integer:
		return float64(c.integer(i)), nil
	case text:
		return strconv.ParseFloat(c.text(i, ""), 64)
	case null:
		return 0, errNull
	default:
	}
	return 0, errors.New("not a number")
}

func anyOf(c columns, i int) any {
	switch c.kind(i) {
	case integer:
		return c.integer(i)
	case real:
		return c.real(i)
	case text:
		return c.text(i, "")
	case blob:
		return c.bytes(i)
	default:
	}
	return nil
}

// plain converts args to the types nil, string, []byte, int64, float64 and bool. It
// returns args itself if all have these types already.
func plain(args []any) ([]any, error) {
	for i, a := range args {
		switch a.(type) {
		case nil, string, int64, bool, []byte, float64:
			continue
		}
		all := make([]any, len(args))
		copy(all, args[:i])
		for j := i; j < len(args); j++ {
			var err error
			if all[j], err = plainOf(args[j]); err != nil {
				return nil, fmt.Errorf("argument %d: %w", j+1, err)
			}
		}
		return all, nil
	}
	return args, nil
}

func plainOf(a any) (any, error) {
	switch a := a.(type) {
	case nil, string, int64, bool, []byte, float64:
		return a, nil
	case int:
		return int64(a), nil
	case argument:
		return plainOf(a.argument())
	}
	v := reflect.ValueOf(a)
	switch {
	case v.Kind() == reflect.String:
		return v.String(), nil
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint() && v.Uint() <= math.MaxInt64:
		return int64(v.Uint()), nil
	case v.CanUint():
		return nil, fmt.Errorf("%d exceeds the range of int64", v.Uint())
	case v.Kind() == reflect.Bool:
		return v.Bool(), nil
	case v.CanFloat():
		return v.Float(), nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		return v.Bytes(), nil
	case v.Kind() == reflect.Pointer && v.IsNil():
		return nil, nil
	case v.Kind() == reflect.Pointer:
		return plainOf(v.Elem().Interface())
	}
	return nil, fmt.Errorf("%s is not a supported type", v.Type())
}

// errNull is the error of NULL for a destination that cannot represent it.
var errNull = errors.New("NULL: scan into a Null or a pointer")
