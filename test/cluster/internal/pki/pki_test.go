package pki

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"
)

func TestIssue(t *testing.T) {
	t.Parallel()
	d := Dir(t.TempDir())
	if err := d.CA("ca", "lab-ca"); err != nil {
		t.Fatal(err)
	}
	c := Cert{File: "node1", CN: "system:node:node1", Org: "system:nodes", DNS: []string{"node1"}, IPs: []string{"10.0.0.1"}}
	if err := d.Issue("ca", c); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(d.Path("node1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(d.Path("node1.crt"), d.Path("node1.key"))
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(d.Path("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	for _, name := range []string{"node1", "10.0.0.1"} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("verify for %s: %v", name, err)
		}
	}
	if got := leaf.Subject.String(); got != "CN=system:node:node1,O=system:nodes" {
		t.Errorf("subject: got %s", got)
	}
	// A second call keeps existing certificates, because running programs use them.
	if err := d.Issue("ca", c); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(d.Path("node1.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if string(after) != string(before) {
		t.Error("a second Issue made another certificate")
	}
}

func TestIssueRefusesAnAddressThatIsNone(t *testing.T) {
	t.Parallel()
	d := Dir(t.TempDir())
	if err := d.CA("ca", "lab-ca"); err != nil {
		t.Fatal(err)
	}
	err := d.Issue("ca", Cert{File: "x", CN: "x", IPs: []string{"10.0.0"}})
	if err == nil || !strings.Contains(err.Error(), "10.0.0") {
		t.Errorf("got %v, want an error that names the address", err)
	}
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	d := Dir(t.TempDir())
	for _, err := range []error{
		d.CA("ca", "lab-ca"), d.Issue("ca", Cert{File: "admin", CN: "admin"}),
		d.KeyPair("sa"), d.Kubeconfig(d.Path("admin.conf"), "https://10.0.0.1:6443", "ca", "admin"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(d.Path("admin.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), `server: "https://10.0.0.1:6443"`) {
		t.Errorf("no server in %s", raw)
	}
	if st, err := os.Stat(d.Path("admin.conf")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v %v, want 0600", st.Mode(), err)
	}
}
