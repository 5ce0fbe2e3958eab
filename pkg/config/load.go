package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Load overwrites the defaults in cfg with the variables that are set. An empty value
// counts as set: text, lists and secrets become empty, for any other type it is an error.
//
// The error joins one error per variable, each with the variable, its value unless it is
// a secret, and the accepted values. A field with an error keeps its default. If cfg has
// a method Validate() error, it is called last, and its error is added. Load panics in
// the same cases as [Fields].
func Load(prefix string, cfg any, lookup Lookup) error {
	var faults []error
	for _, s := range settings(prefix, cfg) {
		if err := s.load(lookup); err != nil {
			faults = append(faults, err)
		}
	}
	if c, ok := cfg.(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

func (s setting) load(lookup Lookup) error {
	text, given := lookup(s.Env)
	if s.Secret {
		return s.loadSecret(text, given, lookup)
	}
	if !given {
		return nil
	}
	if err := s.set(text); err != nil {
		return fmt.Errorf("%s=%.120q: %w", s.Env, text, err)
	}
	return nil
}

func (s setting) loadSecret(text string, given bool, lookup Lookup) error {
	env := s.Env + "_FILE"
	file, fromFile := lookup(env)
	switch {
	case given && fromFile:
		return fmt.Errorf("%s and %s are both set: unset one of them", s.Env, env)
	case fromFile:
		data, err := ReadSecretFile(file)
		if err != nil {
			return fmt.Errorf("%s=%.120q: want a file that holds the secret: %w", env, file, err)
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
		if text == "" {
			return fmt.Errorf("%s=%.120q: the file is empty: write the secret into it, or unset the variable", env, file)
		}
	case !given:
		return nil
	}
	s.value.SetString(text)
	return nil
}

// set parses text into the setting's value. On an error the value is unchanged.
func (s setting) set(text string) error {
	v := reflect.New(s.value.Type()).Elem()
	if err := parse(v, text); err != nil {
		return err
	}
	if s.Accepts != "" {
		accepted := strings.Split(s.Accepts, "|")
		got := []string{text}
		if list, ok := v.Interface().([]string); ok {
			got = list
		}
		for _, g := range got {
			if !slices.Contains(accepted, g) {
				return fmt.Errorf("want one of %s", strings.Join(accepted, ", "))
			}
		}
	}
	s.value.Set(v)
	return nil
}

func parse(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = text
	case *Secret:
		*p = Secret(text)
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("want true or false")
		}
		*p = b
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return wholeNumber(err)
		}
		*p = n
	case *int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return wholeNumber(err)
		}
		*p = n
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New("want a duration with its unit, such as 250ms, 30s or 1h30m")
		}
		*p = d
	case *[]string:
		*p = nil
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*p = append(*p, item)
			}
		}
	case encoding.TextUnmarshaler:
		return p.UnmarshalText([]byte(text))
	default:
		panic(fmt.Sprintf("config: type %s cannot be read from text", v.Type()))
	}
	return nil
}

func wholeNumber(err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("want a whole number of at most 64 bits")
	}
	return errors.New("want a whole number, such as 42 or -1")
}
