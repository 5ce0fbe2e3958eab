package main

import (
	"crypto/ed25519"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"io"
)

// Prefixes of NATS users' Ed25519 keys. Keys are encoded in base 32, and the prefix makes
// the first letters give the type: SU for a user's seed, U for a public key. The key
// follows the prefix, then a checksum, low byte first.
const (
	seedPrefix = 18 << 3 // S
	userPrefix = 20 << 3 // U
)

var base32NoPadding = base32.StdEncoding.WithPadding(base32.NoPadding)

// newUser returns a new seed of a user.
func newUser(random io.Reader) (string, error) {
	raw := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, raw); err != nil {
		return "", err
	}
	return encodeSeed(raw), nil
}

// encodeSeed encodes a seed. The eight bits of the user's prefix are divided between two
// bytes, whose first five bits each become a letter.
func encodeSeed(raw []byte) string {
	return encode([]byte{seedPrefix | userPrefix>>5, userPrefix & 31 << 3}, raw)
}

// publicKey returns the public key of a user's seed.
func publicKey(seed string) (string, error) {
	data, err := base32NoPadding.DecodeString(seed)
	if err != nil || len(data) != 2+ed25519.SeedSize+2 || encodeSeed(data[2:2+ed25519.SeedSize]) != seed {
		return "", errors.New("it is not the seed of a NATS user") // the error must not contain the text, which may be a secret
	}
	key := ed25519.NewKeyFromSeed(data[2 : 2+ed25519.SeedSize])
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return "", errors.New("it has no public key")
	}
	return encode([]byte{userPrefix}, public), nil
}

func encode(prefix, key []byte) string {
	data := append(append([]byte{}, prefix...), key...)
	return base32NoPadding.EncodeToString(binary.LittleEndian.AppendUint16(data, checksum(data)))
}

// checksum returns the CRC-16 with the polynomial 0x1021 and the initial value 0
// (XMODEM).
func checksum(data []byte) uint16 {
	var crc uint16
	for _, b := range data {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}
