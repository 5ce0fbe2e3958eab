package bus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Operator is the user of the command line: it may ask everything and read every
// stream.
const Operator = "operator"

// inboxes is where answers are sent. Each user has a branch of its own, so that
// nobody can listen to another's answers.
const inboxes = "_INBOX"

// NotPermitted is what the log says, as an error, when a guarded bus refused to send.
const NotPermitted = "a service sends what it may not"

// Permissions are the subjects that a user may publish to and subscribe to; what
// is not there is refused.
type Permissions struct{ Publish, Subscribe []string }

// PermissionsOf returns what a service's user needs, from the contracts. The
// user's name is the service's.
func PermissionsOf(o api.Owner) Permissions {
	service, access := o.Service(), api.AccessOf(o)
	p := common(service)
	root := api.Root + "." + string(o) + "."
	p.Publish = append(p.Publish, root+"evt.>", root+"cmd.>", root+"live.>", api.Root+".*.live.control.v1.*")
	p.Subscribe = append(p.Subscribe, root+"req.>", root+"live.>", control(service)+".*",
		"$SRV.*", "$SRV.*."+service, "$SRV.*."+service+".*")
	for _, m := range access.Calls {
		p.Publish = append(p.Publish, m.Subject().String())
	}
	own := map[string]bool{}
	consumed := access.Consumes
	for _, c := range api.Contracts() {
		s := c.Message.Subject()
		if s.Owner != o || s.Stream() == "" {
			continue
		}
		own[s.Stream()] = true
		if s.Class == api.Command {
			consumed = append(consumed, c.Message)
		}
	}
	for stream := range own {
		p.Publish = append(p.Publish, reading(stream)...)
	}
	for _, m := range access.Follows {
		s := m.Subject()
		p.Publish = append(p.Publish, following(s.Stream())...)
		// The release before has a durable, and its replicas run beside those of this one.
		p.Publish = append(p.Publish, "$JS.ACK."+s.Stream()+"."+service+"-"+s.Name+".>")
	}
	for _, m := range consumed {
		s := m.Subject()
		at := s.Stream() + "." + service + "-" + s.Name
		p.Publish = append(
			p.Publish,
			"$JS.API.CONSUMER.CREATE."+at, "$JS.API.CONSUMER.CREATE."+at+".>", "$JS.API.CONSUMER.INFO."+at,
			"$JS.API.CONSUMER.MSG.NEXT."+at, "$JS.ACK."+at+".>",
		)
	}
	if len(access.Keys) > 0 {
		p.Publish = append(p.Publish, reading("KV_"+api.Coordination)...)
	}
	for _, k := range access.Keys {
		p.Publish = append(p.Publish, "$KV."+api.Coordination+"."+k)
	}
	for _, o := range access.Objects {
		p.Publish = append(p.Publish, reading("OBJ_"+o)...)
		p.Publish = append(p.Publish, "$O."+o+".>")
	}
	slices.Sort(p.Publish)
	slices.Sort(p.Subscribe)
	return p
}

// publishOf is what a service may publish; nil, which is everything, for one that
// has no contracts.
func publishOf(service string) []string {
	for _, o := range api.Owners() {
		if o.Service() == service {
			return PermissionsOf(o).Publish
		}
	}
	return nil
}

// permit is an error when the servers of a cluster would refuse that this service
// publishes to a subject. They would do so without a word, and the service would
// wait for an answer in vain.
func (b *Bus) permit(subject string) error {
	if b.allowed == nil || slices.ContainsFunc(b.allowed, func(p string) bool { return covers(p, subject) }) {
		return nil
	}
	b.log.Error(NotPermitted, "service", b.opts.Service, "subject", subject, "mend", "list it in api.AccessOf")
	return api.Errorf(api.Internal, "%s may not send %s: api.AccessOf does not list it", b.opts.Service, subject)
}

// covers says whether a pattern of NATS matches a subject.
func covers(pattern, subject string) bool {
	for {
		want, patterns, more := strings.Cut(pattern, ".")
		got, subjects, longer := strings.Cut(subject, ".")
		switch {
		case want == ">":
			return true
		case want != "*" && want != got || more != longer:
			return false
		case !more:
			return true
		}
		pattern, subject = patterns, subjects
	}
}

// OperatorPermissions is what [Operator] may do. It may move the leader of a durable,
// which loses nothing.
func OperatorPermissions() Permissions {
	p := common(Operator)
	p.Publish = append(p.Publish, api.Root+".*.req.>", api.Root+".*.live.control.v1.*", "$SRV.>", "$JS.API.CONSUMER.LEADER.STEPDOWN.*.*")
	p.Subscribe = append(p.Subscribe, api.Root+".*.live.>")
	for _, s := range api.Streams() {
		p.Publish = append(p.Publish, reading(s.Name)...)
	}
	p.Publish = append(p.Publish, reading("KV_"+api.Coordination)...)
	p.Publish = append(p.Publish, reading("OBJ_"+api.Outputs)...)
	slices.Sort(p.Publish)
	return p
}

// common is what everybody may: make the streams if they are not there, answer,
// and hear answers. Nobody may delete, purge or restore a stream.
func common(user string) Permissions {
	return Permissions{
		Publish: []string{
			"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*",
			inboxes + ".>",
		},
		Subscribe: []string{inboxes + "." + user + ".>"},
	}
}

// reading is what reading a stream and following it takes. A consumer made for
// that acknowledges nothing.
func reading(stream string) []string {
	return append(following(stream), "$JS.API.STREAM.MSG.GET."+stream)
}

// following is what reading a stream in its order takes.
func following(stream string) []string {
	return []string{
		"$JS.API.CONSUMER.CREATE." + stream + ".>", "$JS.API.CONSUMER.INFO." + stream + ".*",
		"$JS.API.CONSUMER.DELETE." + stream + ".*", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".*",
		"$JS.FC." + stream + ".>",
	}
}

// AccountsConf is the accounts of a NATS configuration: the services' account
// with one user each, and the system's. The users' public keys are variables,
// NKEY_ and the name in upper case, which another file sets.
func AccountsConf() string {
	var b strings.Builder
	b.WriteString("# Generated from pkg/api by `make gen`. Do not edit.\naccounts {\n  ANIMA {\n    jetstream: enabled\n    users: [\n")
	user := func(name string, p Permissions) {
		fmt.Fprintf(&b, "      { nkey: $%s, permissions: {\n", NKeyVariable(name))
		list(&b, "publish", p.Publish)
		list(&b, "subscribe", p.Subscribe)
		b.WriteString("      } }\n")
	}
	for _, o := range api.Owners() {
		user(o.Service(), PermissionsOf(o))
	}
	user(Operator, OperatorPermissions())
	b.WriteString("    ]\n  }\n  SYS { users: [ { nkey: $" + NKeyVariable("sys") + " } ] }\n}\nsystem_account: SYS\n")
	return b.String()
}

// NKeyVariable is the variable of [AccountsConf] that holds a user's public key.
func NKeyVariable(user string) string {
	return "NKEY_" + strings.ToUpper(strings.ReplaceAll(user, "-", "_"))
}

func list(b *strings.Builder, what string, subjects []string) {
	fmt.Fprintf(b, "        %s: { allow: [\n", what)
	for _, s := range subjects {
		fmt.Fprintf(b, "          %q\n", s)
	}
	b.WriteString("        ] }\n")
}

// control is where a service's streamed replies are cancelled, but for the
// instance.
func control(service string) string {
	return api.Root + "." + strings.ReplaceAll(service, "-", "_") + ".live.control.v1"
}
