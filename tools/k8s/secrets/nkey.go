package main

import (
	"errors"
	"io"

	"github.com/nats-io/nkeys"
)

// newUser returns a new seed of a NATS user.
func newUser(random io.Reader) (string, error) {
	pair, err := nkeys.CreatePairWithRand(nkeys.PrefixByteUser, random)
	if err != nil {
		return "", err
	}
	seed, err := pair.Seed()
	return string(seed), err
}

// publicKey returns the public key of a user's seed. The error does not contain the text,
// which may be a secret.
func publicKey(seed string) (string, error) {
	notSeed := errors.New("it is not the seed of a NATS user")
	_, raw, err := nkeys.DecodeSeed([]byte(seed))
	if err != nil {
		return "", notSeed
	}
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, raw)
	if err != nil {
		return "", notSeed
	}
	if again, err := pair.Seed(); err != nil || string(again) != seed { // the seed of another type, or another text for the same bits
		return "", notSeed
	}
	return pair.PublicKey()
}
