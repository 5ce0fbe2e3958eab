// Package strictjson reads JSON with gjson and refuses values that do not have the
// expected type. It must get valid JSON only; [gjson.Valid] checks that.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// MaxFields is the most fields of an object that [Object] reads.
const MaxFields = 32

// ErrField is the error of [Object] for a field that is repeated or one too many.
var ErrField = errors.New("the field is repeated, or the object has too many")

// Object calls field for each field of an object until it returns an error. null is an
// object without fields. Any other value is an error, and so are a repeated field and
// more than [MaxFields] fields.
func Object(v gjson.Result, field func(name string, v gjson.Result) error) error {
	if v.Type == gjson.Null {
		return nil
	}
	if !v.IsObject() {
		return wrong("an object", v)
	}
	var seen [MaxFields]string
	var err error
	n := 0
	v.ForEach(func(name, v gjson.Result) bool {
		if n == MaxFields || slices.Contains(seen[:n], name.Str) {
			err = ErrField
		} else {
			seen[n] = name.Str
			n++
			err = field(name.Str, v)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name.Str, err)
		}
		return err == nil
	})
	return err
}

// Array calls element for each object of an array until it returns an error. null is an
// empty array. Any other value is an error, and so is an element that is not an object.
func Array(v gjson.Result, element func(v gjson.Result) error) error {
	if v.Type == gjson.Null {
		return nil
	}
	if !v.IsArray() {
		return wrong("an array", v)
	}
	var err error
	v.ForEach(func(_, v gjson.Result) bool {
		if !v.IsObject() {
			err = wrong("an object", v)
		} else {
			err = element(v)
		}
		return err == nil
	})
	return err
}

// Value reads a string, a boolean or a number. null is the zero value. Any other value is
// an error, and so is a number with a fraction or an exponent for an int64.
func Value[T string | bool | int64 | float64](v gjson.Result, out *T) error {
	*out = *new(T)
	var err error
	switch out := any(out).(type) {
	case *string:
		if err = typed(v, "a string", v.Type == gjson.String); err == nil {
			*out, err = text(v)
		}
	case *bool:
		*out = v.Type == gjson.True
		err = typed(v, "a boolean", v.IsBool())
	case *float64:
		*out = v.Num
		err = typed(v, "a number", v.Type == gjson.Number)
	case *int64:
		if err = typed(v, "an integer", v.Type == gjson.Number); err == nil && v.Type != gjson.Null {
			*out, err = strconv.ParseInt(v.Raw, 10, 64)
		}
	}
	return err
}

// text returns the text of a string. After half of a surrogate pair gjson omits the escape
// that follows it, so such a string, which is rare, is decoded again.
func text(v gjson.Result) (string, error) {
	hasEscapes := len(v.Raw) > len(v.Str)+len(`""`)
	if !hasEscapes || !strings.ContainsRune(v.Str, utf8.RuneError) {
		return v.Str, nil
	}
	var s string
	err := json.Unmarshal([]byte(v.Raw), &s)
	return s, err
}

func typed(v gjson.Result, want string, ok bool) error {
	if ok || v.Type == gjson.Null {
		return nil
	}
	return wrong(want, v)
}

func wrong(want string, v gjson.Result) error {
	return fmt.Errorf("got %.40s, want %s", v.Raw, want)
}
