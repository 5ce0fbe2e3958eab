package config

import (
	"flag"
	"reflect"
)

// Bind adds a flag to fs for every setting of cfg that has one, and returns a
// lookup that answers with the flags given on the command line and asks under
// about everything else. A flag is thus another spelling of its variable, and
// [Load] with that lookup gives the order default, environment, flag:
//
//	lookup := config.Bind(fs, "policy", &cfg, os.LookupEnv)
//	if err := fs.Parse(args); err != nil { … }
//	if err := config.Load("policy", &cfg, lookup); err != nil { … }
//
// Calls may be chained to put several structs on one command line. A value that
// cannot be read is refused by fs.Parse. A secret's flag names a file and hides
// the variable that holds the secret itself. Bind does not change cfg.
func Bind(fs *flag.FlagSet, prefix string, cfg any, under Lookup) Lookup {
	flags := map[string]*flagValue{}  // by the variable they stand for
	hiding := map[string]*flagValue{} // by the variable they make moot
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
	given bool // on the command line
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

// IsBoolFlag lets -x stand for -x=true.
func (f *flagValue) IsBoolFlag() bool { return f.value.Kind() == reflect.Bool }
