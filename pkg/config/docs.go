package config

import (
	"fmt"
	"io"
	"strings"
)

// Section is one table in the documentation of the settings.
type Section struct {
	Title  string
	Intro  string // a paragraph before the table; may be empty
	Fields []Field
}

// Markdown writes the sections in the given order. The output is deterministic. It
// returns the first error of w.
func Markdown(w io.Writer, sections ...Section) error {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s\n\n", s.Title)
		if s.Intro != "" {
			fmt.Fprintf(&b, "%s\n\n", s.Intro)
		}
		b.WriteString("| variable | flag | value | default | meaning |\n| --- | --- | --- | --- | --- |\n")
		for _, f := range s.Fields {
			env, name := code(f.Env), ""
			if f.Secret {
				env += " or " + code(f.Env+"_FILE")
			}
			if f.Flag != "" {
				name = code("-" + f.Flag)
			}
			value := f.Type
			if f.Accepts != "" {
				value = code(strings.Split(f.Accepts, "|")...)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", env, name, value, code(f.Default), cell(f.Help))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func code(words ...string) string {
	var out []string
	for _, w := range words {
		if w != "" {
			out = append(out, "`"+cell(w)+"`")
		}
	}
	return strings.Join(out, ", ")
}

// cell escapes text so that it does not end a cell or a row.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\r", "", "\n", " ").Replace(s)
}
