// Package pki creates the certificates and kubeconfigs of one lab cluster. They must not
// be used outside of the lab, because the keys are stored unencrypted in its state.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
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
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := template(cn, "")
	if err != nil {
		return err
	}
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	return d.write(name, der, key)
}

// Issue creates a certificate and key called c.File, signed by ca, unless they exist. The
// certificate is valid for clients and servers.
func (d Dir) Issue(ca string, c Cert) error {
	if d.has(c.File) {
		return nil
	}
	caCert, caKey, err := d.load(ca)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t, err := template(c.CN, c.Org)
	if err != nil {
		return err
	}
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
	der, err := x509.CreateCertificate(rand.Reader, t, caCert, &key.PublicKey, caKey)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.File, err)
	}
	return d.write(c.File, der, key)
}

// KeyPair creates a key name.key with its public key name.pub, for signing tokens, unless
// they exist.
func (d Dir) KeyPair(name string) error {
	if exists(d.Path(name+".key")) && exists(d.Path(name+".pub")) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := d.writeKey(name, key); err != nil {
		return err
	}
	return os.WriteFile(d.Path(name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}), 0o644)
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

func template(cn, org string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	s := pkix.Name{CommonName: cn}
	if org != "" {
		s.Organization = []string{org}
	}
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: s, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life)}, nil
}

func (d Dir) has(name string) bool {
	return exists(d.Path(name+".crt")) && exists(d.Path(name+".key"))
}

func (d Dir) load(name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	crt, err := block(d.Path(name + ".crt"))
	if err != nil {
		return nil, nil, err
	}
	key, err := block(d.Path(name + ".key"))
	if err != nil {
		return nil, nil, err
	}
	c, err := x509.ParseCertificate(crt)
	if err != nil {
		return nil, nil, fmt.Errorf("%s.crt: %w", name, err)
	}
	k, err := x509.ParseECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("%s.key: %w", name, err)
	}
	return c, k, nil
}

// write writes the key first, so that after a crash a certificate never exists without
// its key.
func (d Dir) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := d.writeKey(name, key); err != nil {
		return err
	}
	return os.WriteFile(d.Path(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func (d Dir) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return os.WriteFile(d.Path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func block(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(raw)
	if b == nil {
		return nil, fmt.Errorf("%s holds no PEM; wipe the lab's state", path)
	}
	return b.Bytes, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
