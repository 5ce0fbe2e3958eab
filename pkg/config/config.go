// Package config fills a struct from the environment, defines flags for its fields and
// writes the table that documents them, all from one declaration:
//
//	type Config struct {
//		MaxCost int64         `env:"max_cost" help:"most a step may cost, in micro-USD"`
//		Token   config.Secret `env:"token" help:"the operator's token"`
//		APIKey  config.Secret `env:"OPENAI_API_KEY,exact" help:"key of the provider"`
//		Mode    string        `env:"mode" oneof:"queue|drop" help:"what a full queue does"`
//	}
//
// In service policy the variable of the first field is ANIMA_POLICY_MAX_COST and its flag
// is -policy-max-cost; the environment overrides a default, and a flag overrides the
// environment. The package does not read the environment itself: every value comes from
// the given [Lookup], and from the files that the variables of secrets name. It must not
// contain settings of a service.
package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Lookup returns the value of an environment variable; [os.LookupEnv] is one.
type Lookup func(name string) (value string, set bool)

// Field is one setting of a config struct.
type Field struct {
	Env     string // variable, such as ANIMA_POLICY_MAX_COST
	Flag    string // flag without dashes; empty if the setting has none
	Type    string // description of the type: "whole number", "duration", …
	Accepts string // the allowed values, separated by "|"; empty means any
	Default string // in the format of the environment; always empty for secrets
	Help    string
	Secret  bool // the value is never shown, and <Env>_FILE may name a file that holds it
}

// setting is a Field with the variable that holds its value.
type setting struct {
	Field
	value reflect.Value
}

// Fields returns the settings of the struct that cfg points to, in the order of the
// struct, with their current values as defaults. The fields of nested structs are listed
// in place; an env tag on a nested struct is a prefix of their names. Fields without an
// env tag are ignored.
//
// Fields panics if cfg is not a pointer to a struct, a tagged field has a type that
// cannot be parsed from text, or two fields have the same variable.
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
				s.Flag += "-file" // every user of the machine can read a command line
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

// format returns a value in the format of the environment.
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
