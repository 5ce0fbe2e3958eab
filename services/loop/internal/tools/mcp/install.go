package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/config"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

// Installer returns the tool install_mcp_server.
func (m *Manager) Installer() engine.Tool {
	t := engine.Builtin("install_mcp_server", func(a catalog.Args) error {
		_, err := m.described(a)
		return err
	}, m.install)
	t.Timeout = m.cfg.Connect + writeWait // longer than the timeout of connect, whose error is more precise
	return t
}

// described returns the server that the tool's arguments describe. Its errors contain no
// value of env or headers.
func (m *Manager) described(a catalog.Args) (Server, error) {
	var s Server
	if text := a.String("config"); text != "" {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&s); err != nil || dec.More() || s.Command != "" || s.URL != "" {
			return s, errors.New("config must be a JSON object with args (a list of texts), env and headers (objects of texts)")
		}
	}
	s.Name = a.String("name")
	if what := strings.TrimSpace(a.String("package")); strings.Contains(what, "://") {
		s.URL = config.Secret(what)
	} else {
		words := strings.Fields(what)
		for _, w := range words {
			if !program.MatchString(w) {
				return s, errors.New("package is a program with plain arguments, such as npx -y some-server, or an address; other arguments go into config's args")
			}
		}
		s.Command, s.Args = words[0], append(words[1:], s.Args...)
	}
	return s, s.check(m.cfg.Outbound)
}

// install stores the server and then connects, so that the result of the call says
// whether the server works. A crash between the two leaves a stored server, which is
// connected when its tools are needed.
func (m *Manager) install(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
	s, err := m.described(a)
	if err != nil {
		return engine.Output{}, err
	}
	if s.URL != "" {
		err := tools.NeedNetwork(c.Agent, ", so no server at an address can be reached",
			"use a server that is a program, or ask the creator for sandbox.network in AGENT.md")
		if err != nil {
			return engine.Output{}, err
		}
	}
	servers, faults, err := m.registry.list(c.Agent.ID)
	if err != nil {
		return engine.Output{}, err
	}
	servers = slices.DeleteFunc(servers, func(other Server) bool { return other.Name == s.Name })
	if len(servers)+len(faults) >= MaxServers {
		return engine.Output{}, fmt.Errorf("an agent has at most %d MCP servers; the creator can remove one", MaxServers)
	}
	if err := m.registry.put(c.Agent.ID, s); err != nil {
		return engine.Output{}, err
	}
	if s, err = m.registry.get(c.Agent.ID, s.Name); err != nil { // in the form that later turns compare with
		return engine.Output{}, err
	}
	m.resetBackoff(key{c.Agent.ID, s.Name})
	l, err := m.link(ctx, c.Agent, s)
	if err == nil {
		err = l.wait(ctx)
	}
	if ctx.Err() != nil {
		return engine.Output{}, context.Cause(ctx)
	}
	if err != nil {
		return engine.Output{Text: "the MCP server " + s.Name + " is stored and is connected again when its tools are needed"},
			fmt.Errorf("the MCP server %s cannot be used now: %w", s.Name, err)
	}
	return engine.Output{Text: report(c.Agent, s.Name, m.offers(ctx, l), l.refused)}, nil
}

// report returns the text of an installation's result.
func report(a engine.Agent, server string, offers []offer, refused []string) string {
	var granted, others []string
	for _, o := range offers {
		if api.Grants(a.Tools, o.name) {
			granted = append(granted, o.name)
		} else {
			others = append(others, o.name)
		}
	}
	text := fmt.Sprintf("connected the MCP server %s", server)
	if len(granted) > 0 {
		text += "; from the next turn on you have " + first(granted, 20, ", ")
	}
	if len(others) > 0 {
		text += fmt.Sprintf("; your definition does not grant %s: ask your creator to add mcp_%s_* to tools in AGENT.md", first(others, 20, ", "), notWord.ReplaceAllString(server, "_"))
	}
	if len(offers) == 0 {
		text += "; it offers no tool that can be used"
	}
	if len(refused) > 0 {
		text += "; not used: " + first(refused, 10, "; ")
	}
	return text
}
