package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// Nonces issues nonces for sign-ins. A nonce contains its expiry and a MAC, so nothing is
// stored when it is issued: requests of strangers cannot fill the store. That a nonce is
// used once is the store's rule, see [Store]. All replicas use the same secret.
type Nonces struct{ secret []byte }

// NewNonces returns a source of nonces with a secret of the installation.
func NewNonces(secret []byte) Nonces { return Nonces{secret} }

// Sizes of the parts of a nonce, in bytes: expiry in Unix seconds, random bytes, MAC.
const expirySize, randomSize, macSize = 8, 12, 12

// New returns a nonce of 64 hex digits that is valid for [NonceLife].
func (n Nonces) New(now time.Time) string {
	raw := binary.BigEndian.AppendUint64(nil, uint64(now.Add(NonceLife).Unix())) //nolint:gosec // times after 1970
	var random [randomSize]byte
	_, _ = rand.Read(random[:]) // never fails
	raw = append(raw, random[:]...)
	return hex.EncodeToString(append(raw, n.mac(raw)...))
}

// Expiry returns the time at which a nonce expires. It returns false for a text that is
// not a nonce of this installation.
func (n Nonces) Expiry(nonce string) (time.Time, bool) {
	raw, err := hex.DecodeString(nonce)
	const signed = expirySize + randomSize
	// The spelling is compared too: a nonce in capitals would be used a second time.
	if err != nil || len(raw) != signed+macSize || hex.EncodeToString(raw) != nonce || !hmac.Equal(raw[signed:], n.mac(raw[:signed])) {
		return time.Time{}, false
	}
	return time.Unix(int64(binary.BigEndian.Uint64(raw)), 0), true //nolint:gosec // made by New
}

func (n Nonces) mac(raw []byte) []byte {
	h := hmac.New(sha256.New, n.secret)
	h.Write(raw)
	return h.Sum(nil)[:macSize]
}
