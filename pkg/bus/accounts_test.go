package bus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// OperatorPermissions returns the permissions of [Operator]. They include moving the
// leader of a durable, which loses no message.
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

// AccountsConf returns the accounts of a NATS configuration: the account of the services
// with one user each, and the system account. The public keys of the users are variables,
// see [NKeyVariable], which another file sets.
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

// NKeyVariable returns the variable of [AccountsConf] that holds a user's public key:
// NKEY_ and the name in upper case.
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
