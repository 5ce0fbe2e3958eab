// Package pki creates the certificates and kubeconfigs of one lab cluster. They must not
// be used outside of the lab, because the keys are stored unencrypted in its state.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// life is the validity of a certificate. Labs exist for a much shorter time.
const life = 10 * 365 * 24 * time.Hour

// Dir is a folder of NAME.crt and NAME.key files, in PEM.
type Dir string

// Cert describes the purpose of a certificate. Zero fields are omitted.
type Cert struct {
	CN   string   // common name: the user, for a client
	Org  string   // organisation: the group, for a client
	DNS  []string // names of the server
	IPs  []string // addresses of the server
	File string   // file name without the extension
}

// Path returns the path of a file in the folder.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// CA creates a certificate authority called name unless it exists.
func (d Dir) CA(name, cn string) error {
	if d.has(name) {
		return nil
	}
	t := template(cn, "")
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	return d.create(name, t, t, nil)
}

// Issue creates a certificate and key called c.File, signed by ca, unless they exist. The
// certificate is valid for clients and servers.
func (d Dir) Issue(ca string, c Cert) error {
	if d.has(c.File) {
		return nil
	}
	authority, err := tls.LoadX509KeyPair(d.Path(ca+".crt"), d.Path(ca+".key"))
	if err != nil {
		return fmt.Errorf("certificate authority %s: %w; wipe the lab's state", ca, err)
	}
	t := template(c.CN, c.Org)
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	t.DNSNames = c.DNS
	for _, s := range c.IPs {
		ip := net.ParseIP(s)
		if ip == nil {
			return fmt.Errorf("certificate %s: %q is no address", c.File, s)
		}
		t.IPAddresses = append(t.IPAddresses, ip)
	}
	return d.create(c.File, t, authority.Leaf, authority.PrivateKey)
}

// create writes a new key, and a certificate of it that signer has signed; nil means that
// the key signs it itself. The key is written first, so that after a crash a certificate
// never exists without its key.
func (d Dir) create(name string, t, parent *x509.Certificate, signer any) error {
	key, err := d.newKey(name)
	if err != nil {
		return err
	}
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return d.write(name+".crt", "CERTIFICATE", der, 0o644)
}

// KeyPair creates a key name.key with its public key name.pub, for signing tokens, unless
// they exist.
func (d Dir) KeyPair(name string) error {
	if exists(d.Path(name+".key")) && exists(d.Path(name+".pub")) {
		return nil
	}
	key, err := d.newKey(name)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return d.write(name+".pub", "PUBLIC KEY", pub, 0o644)
}

// Kubeconfig writes to path a kubeconfig for the user of certificate name and for server,
// whose certificate ca has signed.
func (d Dir) Kubeconfig(path, server, ca, name string) error {
	var b [3]string
	for i, f := range []string{ca + ".crt", name + ".crt", name + ".key"} {
		raw, err := os.ReadFile(d.Path(f))
		if err != nil {
			return err
		}
		b[i] = base64.StdEncoding.EncodeToString(raw)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: %q, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: lab, context: {cluster: lab, user: %q}}]
current-context: lab
`, server, b[0], name, b[1], b[2], name)
	return os.WriteFile(path, []byte(text), 0o600)
}

// template returns a certificate without a serial number, for which CreateCertificate
// chooses a random one.
func template(cn, org string) *x509.Certificate {
	s := pkix.Name{CommonName: cn}
	if org != "" {
		s.Organization = []string{org}
	}
	now := time.Now()
	return &x509.Certificate{Subject: s, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life)}
}

func (d Dir) has(name string) bool {
	return exists(d.Path(name+".crt")) && exists(d.Path(name+".key"))
}

// newKey creates the key name.key.
func (d Dir) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, d.write(name+".key", "EC PRIVATE KEY", der, 0o600)
}

func (d Dir) write(name, kind string, der []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
