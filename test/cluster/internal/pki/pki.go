// Package pki makes the certificates and kubeconfigs of one lab cluster. They
// are worth nothing outside of it: keys lie unencrypted in the lab's state.
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

// life is how long a certificate is valid. A lab is wiped long before.
const life = 10 * 365 * 24 * time.Hour

// Dir is a folder of NAME.crt and NAME.key files, in PEM.
type Dir string

// Cert says what a certificate is for. Zero fields are left out of it.
type Cert struct {
	CN   string   // common name: the user, for a client
	Org  string   // organisation: the group, for a client
	DNS  []string // names it serves
	IPs  []string // addresses it serves
	File string   // file name, without the ending
}

// Path returns the path of one file of the folder.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// CA makes a certificate authority called name unless it is there already.
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

// Issue makes a certificate and key called c.File, signed by ca, unless they are
// there already. It serves as a client's and as a server's.
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

// KeyPair makes a bare key name.key with its public half name.pub, for signing
// tokens, unless they are there already.
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

// Kubeconfig writes to path how the user of certificate name reaches server,
// whose certificate ca signed.
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

// write stores the key first: a certificate without a key must never look whole.
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
