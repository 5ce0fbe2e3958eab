package bus

import (
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Operator is the user of the command line, which may send every request and read every
// stream.
const Operator = "operator"

// inboxes is the prefix of reply subjects. Each user has its own branch, so that no user
// can subscribe to another's replies.
const inboxes = "_INBOX"

// NotPermitted is the log message of a guarded bus that refused to publish.
const NotPermitted = "service publishes on a subject without permission"

// Permissions are the subjects that a user may publish to and subscribe to. The servers
// refuse all others.
type Permissions struct{ Publish, Subscribe []string }

// PermissionsOf returns the permissions that a service needs by its contracts. The name
// of its user is that of the service.
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
	for _, stream := range streamsOf(o) {
		p.Publish = append(p.Publish, reading(stream)...)
	}
	for _, m := range access.Follows {
		s := m.Subject()
		p.Publish = append(p.Publish, following(s.Stream())...)
		// The previous release has a durable, and its replicas run at the same time
		// during an upgrade.
		p.Publish = append(p.Publish, "$JS.ACK."+s.Stream()+"."+service+"-"+s.Name+".>")
	}
	for _, s := range consumedBy(o) {
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

// OwnerOf returns the owner of a service's contracts; false for a service without them.
func OwnerOf(service string) (api.Owner, bool) {
	for _, o := range api.Owners() {
		if o.Service() == service {
			return o, true
		}
	}
	return "", false
}

// consumedBy returns the subjects that a service consumes through a durable each.
func consumedBy(o api.Owner) (all []api.Subject) {
	for _, m := range api.AccessOf(o).Consumes {
		all = append(all, m.Subject())
	}
	for _, m := range api.Messages() {
		if s := m.Subject(); s.Owner == o && s.Class == api.Command {
			all = append(all, s)
		}
	}
	return all
}

// permit returns an error if the servers of a cluster would refuse a message of this
// service on a subject. They would drop it without an answer, and the service would wait
// in vain.
func (b *Bus) permit(subject string) error {
	if b.allowed == nil || slices.ContainsFunc(b.allowed, func(p pattern) bool { return p.matches(subject) }) {
		return nil
	}
	b.log.Error(NotPermitted, "service", b.opts.Service, "subject", subject, "mend", "list it in api.AccessOf")
	return api.Errorf(api.Internal, "%s may not send %s: api.AccessOf does not list it", b.opts.Service, subject)
}

// pattern is a pattern of NATS, divided before its first wildcard: the literal part, which
// most patterns do not share with a subject, is compared at once.
type pattern struct{ literal, rest string }

func patternsOf(all []string) []pattern {
	out := make([]pattern, len(all))
	for i, p := range all {
		n := strings.IndexAny(p, "*>")
		if n < 0 {
			n = len(p)
		}
		out[i] = pattern{p[:n], p[n:]}
	}
	return out
}

func (p pattern) matches(subject string) bool {
	rest, ok := strings.CutPrefix(subject, p.literal)
	return ok && covers(p.rest, rest)
}

// covers reports whether a pattern, or the rest of one, matches a subject, or the rest of
// one.
func covers(pattern, subject string) bool {
	for i := range len(pattern) {
		switch {
		case pattern[i] == '>':
			return true
		case pattern[i] == '*':
			token, _, _ := strings.Cut(subject, ".")
			subject = subject[len(token):]
		case subject == "" || subject[0] != pattern[i]:
			return false
		default:
			subject = subject[1:]
		}
	}
	return subject == ""
}

// common returns the permissions of every user: create and update streams, send replies,
// and receive its own. No user may delete, purge or restore a stream.
func common(user string) Permissions {
	return Permissions{
		Publish: []string{
			"$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*",
			inboxes + ".>",
		},
		Subscribe: []string{inboxes + "." + user + ".>"},
	}
}

// reading returns the subjects to publish to for reading and following a stream. Its
// consumers do not acknowledge messages.
func reading(stream string) []string {
	return append(following(stream), "$JS.API.STREAM.MSG.GET."+stream)
}

// following returns the subjects to publish to for reading a stream in its order.
func following(stream string) []string {
	return []string{
		"$JS.API.CONSUMER.CREATE." + stream + ".>", "$JS.API.CONSUMER.INFO." + stream + ".*",
		"$JS.API.CONSUMER.DELETE." + stream + ".*", "$JS.API.CONSUMER.MSG.NEXT." + stream + ".*",
		"$JS.FC." + stream + ".>",
	}
}

// control returns the prefix, without the instance, of the subjects on which streamed
// replies of a service are cancelled.
func control(service string) string {
	return api.Root + "." + strings.ReplaceAll(service, "-", "_") + ".live.control.v1"
}
