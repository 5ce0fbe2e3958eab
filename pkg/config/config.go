// Package config fills a struct from the environment, gives its fields flags
// and writes the table that documents them. One declaration serves all three:
//
//	type Config struct {
//		MaxCost int64         `env:"max_cost" help:"most a step may cost, in micro-USD"`
//		Token   config.Secret `env:"token" help:"the operator's token"`
//		APIKey  config.Secret `env:"OPENAI_API_KEY,exact" help:"key of the provider"`
//		Mode    string        `env:"mode" oneof:"queue|drop" help:"what a full queue does"`
//	}
//
// In service policy the first field is the variable ANIMA_POLICY_MAX_COST and
// the flag -policy-max-cost; a default is overridden by the environment, and
// that by a flag. The package reads no environment by itself: every value
// comes through the [Lookup] it is given, and from the files that variables of
// secrets name. It knows no setting of any service.
package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Lookup finds the value of an environment variable; [os.LookupEnv] is one.
type Lookup func(name string) (value string, set bool)

// Field is one setting of a config struct.
type Field struct {
	Env     string // variable, such as ANIMA_POLICY_MAX_COST
	Flag    string // flag without dashes; empty when the setting has none
	Type    string // what the value is, for people: "whole number", "duration", …
	Accepts string // the closed set of values, separated by "|"; empty means any
	Default string // as one would write it in the environment; always empty for secrets
	Help    string
	Secret  bool // the value is never shown, and <Env>_FILE may name a file that holds it
}

// setting is a Field together with the place its value goes to.
type setting struct {
	Field
	value reflect.Value
}

// Fields lists the settings of the struct that cfg points to, in the order of
// the struct, with the values it holds now as defaults. The fields of nested
// structs are listed in place; an env tag on a nested struct is put before
// their names. Fields without an env tag are left alone.
//
// Fields panics when cfg is not a pointer to a struct, a tagged field has a
// type that cannot be read from text, or two fields share a variable.
func Fields(prefix string, cfg any) []Field {
	all := settings(prefix, cfg)
	fields := make([]Field, len(all))
	for i, s := range all {
		fields[i] = s.Field
	}
	return fields
}

func settings(prefix string, cfg any) []setting {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: want a pointer to a struct, got %T", cfg))
	}
	all := walk(nil, prefix, v.Elem())
	owner := map[string]bool{}
	for _, s := range all {
		names := []string{s.Env}
		if s.Secret {
			names = append(names, s.Env+"_FILE")
		}
		for _, name := range names {
			if owner[name] {
				panic(fmt.Sprintf("config: two fields of %T are %s", cfg, name))
			}
			owner[name] = true
		}
	}
	return all
}

func walk(all []setting, prefix string, v reflect.Value) []setting {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("env"), ",")
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		if f.Type.Kind() == reflect.Struct && !readsText(v.Field(i)) {
			all = walk(all, join(prefix, name), v.Field(i))
			continue
		}
		if name == "" {
			continue
		}
		s := setting{value: v.Field(i), Field: Field{
			Env:     name,
			Type:    typeName(v.Field(i), f),
			Accepts: f.Tag.Get("oneof"),
			Help:    f.Tag.Get("help"),
		}}
		_, s.Secret = s.value.Interface().(Secret)
		if !s.Secret {
			s.Default = format(s.value)
		}
		if option != "exact" {
			path := join(prefix, name)
			s.Env = "ANIMA_" + strings.ToUpper(strings.ReplaceAll(path, "-", "_"))
			s.Flag = strings.ToLower(strings.ReplaceAll(path, "_", "-"))
			if s.Secret {
				s.Flag += "-file" // a secret on a command line is read by every user of the machine
			}
		}
		all = append(all, s)
	}
	return all
}

func join(prefix, name string) string {
	if prefix == "" || name == "" {
		return prefix + name
	}
	return prefix + "_" + name
}

func readsText(v reflect.Value) bool {
	_, ok := reflect.New(v.Type()).Interface().(encoding.TextUnmarshaler)
	return ok
}

func typeName(v reflect.Value, f reflect.StructField) string {
	switch v.Interface().(type) {
	case string:
		return "text"
	case Secret:
		return "secret"
	case bool:
		return "true or false"
	case int, int64:
		return "whole number"
	case time.Duration:
		return "duration"
	case []string:
		return "list"
	}
	if !readsText(v) {
		panic(fmt.Sprintf("config: field %s: type %s cannot be read from text", f.Name, f.Type))
	}
	return strings.ToLower(f.Type.Name())
}

// format writes a value as the environment would hold it.
func format(v reflect.Value) string {
	switch x := v.Addr().Interface().(type) {
	case *[]string:
		return strings.Join(*x, ",")
	case encoding.TextMarshaler:
		text, err := x.MarshalText()
		if err != nil {
			panic(fmt.Sprintf("config: default of type %T: %v", x, err))
		}
		return string(text)
	default:
		return fmt.Sprint(v.Interface())
	}
}
