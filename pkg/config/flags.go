package config

import (
	"flag"
	"reflect"
)

// Bind adds a flag to fs for every setting of cfg that has one. It returns a lookup that
// returns the flags given on the command line, and calls under for all other variables.
// With that lookup [Load] applies the order default, environment, flag:
//
//	lookup := config.Bind(fs, "policy", &cfg, os.LookupEnv)
//	if err := fs.Parse(args); err != nil { … }
//	if err := config.Load("policy", &cfg, lookup); err != nil { … }
//
// Calls may be chained to put several structs on one command line. fs.Parse returns an
// error for a value that cannot be parsed. The flag of a secret names a file, and
// overrides the variable that holds the secret itself. Bind does not change cfg.
func Bind(fs *flag.FlagSet, prefix string, cfg any, under Lookup) Lookup {
	flags := map[string]*flagValue{}  // by the variable that the flag sets
	hiding := map[string]*flagValue{} // by the variable that the flag overrides
	for _, s := range settings(prefix, cfg) {
		if s.Flag == "" {
			continue
		}
		f := &flagValue{setting: s, text: s.Default}
		help := s.Help
		if s.Secret {
			flags[s.Env+"_FILE"], hiding[s.Env] = f, f
			help = "`file` that holds: " + help
		} else {
			flags[s.Env] = f
		}
		if s.Accepts != "" {
			help += " (" + s.Accepts + ")"
		}
		fs.Var(f, s.Flag, help)
	}
	return func(name string) (string, bool) {
		if f := flags[name]; f != nil && f.given {
			return f.text, true
		}
		if f := hiding[name]; f != nil && f.given {
			return "", false
		}
		return under(name)
	}
}

type flagValue struct {
	setting
	text  string
	given bool // set on the command line
}

// String is also called by package flag on a zero value.
func (f *flagValue) String() string { return f.text }

func (f *flagValue) Set(text string) error {
	if !f.Secret {
		scratch := setting{Field: f.Field, value: reflect.New(f.value.Type()).Elem()}
		if err := scratch.set(text); err != nil {
			return err
		}
	}
	f.text, f.given = text, true
	return nil
}

// IsBoolFlag makes -x equal to -x=true for a bool.
func (f *flagValue) IsBoolFlag() bool { return f.value.Kind() == reflect.Bool }
