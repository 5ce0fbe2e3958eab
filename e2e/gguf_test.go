//go:build interop

package e2e

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
)

// Dimensions of the tiny model, and its context length in tokens. A token is a byte.
const (
	tinyWidth, tinyLayers, tinyInner, tinyHeads = 32, 1, 32, 2
	tinyWindow                                  = 65536
)

// Types of GGUF values (the format's specification, version 3).
const (
	ggufU32, ggufI32, ggufF32, ggufBool, ggufString, ggufArray = 4, 5, 6, 7, 8, 9
)

// gguf is a buffer for parts of a GGUF file.
type gguf struct{ bytes.Buffer }

func (g *gguf) put(v any) {
	if err := binary.Write(g, binary.LittleEndian, v); err != nil {
		panic(err) // writes to a bytes.Buffer do not fail
	}
}

func (g *gguf) text(s string) { g.put(uint64(len(s))); g.WriteString(s) }

func (g *gguf) key(name string, kind uint32) { g.text(name); g.put(kind) }

// writeTiny writes a llama model with random weights. Its answers are random text.
func writeTiny(t *testing.T, file string) {
	t.Helper()
	var head, body gguf
	entries := uint64(0)
	number := func(name string, v uint32) { head.key(name, ggufU32); head.put(v); entries++ }
	fraction := func(name string, v float32) { head.key(name, ggufF32); head.put(v); entries++ }
	word := func(name, v string) { head.key(name, ggufString); head.text(v); entries++ }
	words := func(name string, all []string) {
		head.key(name, ggufArray)
		head.put(uint32(ggufString))
		head.put(uint64(len(all)))
		for _, s := range all {
			head.text(s)
		}
		entries++
	}
	tokens := byteTokens()
	word("general.architecture", "llama")
	word("general.name", "tiny")
	number("general.file_type", 0)
	number("general.alignment", 32)
	number("llama.context_length", tinyWindow)
	number("llama.embedding_length", tinyWidth)
	number("llama.block_count", tinyLayers)
	number("llama.feed_forward_length", tinyInner)
	number("llama.vocab_size", uint32(len(tokens)))
	number("llama.attention.head_count", tinyHeads)
	number("llama.attention.head_count_kv", tinyHeads)
	number("llama.rope.dimension_count", tinyWidth/tinyHeads)
	fraction("llama.attention.layer_norm_rms_epsilon", 1e-5)
	fraction("llama.rope.freq_base", 10000)
	word("tokenizer.ggml.model", "gpt2")
	word("tokenizer.ggml.pre", "default")
	words("tokenizer.ggml.tokens", tokens)
	words("tokenizer.ggml.merges", []string{"t h"})
	head.key("tokenizer.ggml.token_type", ggufArray)
	head.put(uint32(ggufI32))
	head.put(uint64(len(tokens)))
	for i := range tokens {
		kind := int32(1)
		if i >= 256 {
			kind = 3 // control token
		}
		head.put(kind)
	}
	entries++
	number("tokenizer.ggml.bos_token_id", 256)
	number("tokenizer.ggml.eos_token_id", 257)
	head.key("tokenizer.ggml.add_bos_token", ggufBool)
	head.put(true)
	entries++

	tensors := writeTensors(&head, &body, len(tokens))
	var all gguf
	all.WriteString("GGUF")
	all.put(uint32(3))
	all.put(tensors)
	all.put(entries)
	all.Write(head.Bytes())
	all.Write(make([]byte, -all.Len()&31))
	all.Write(body.Bytes())
	if err := os.WriteFile(file, all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func writeTensors(head, body *gguf, vocabulary int) uint64 {
	random := rand.New(rand.NewPCG(7, 7))
	count := uint64(0)
	tensor := func(name string, one bool, shape ...int) {
		size := 1
		head.text(name)
		head.put(uint32(len(shape)))
		for _, n := range shape {
			head.put(uint64(n))
			size *= n
		}
		head.put(uint32(0)) // type float32
		head.put(uint64(body.Len()))
		for range size {
			v := float32(1)
			if !one {
				v = float32(random.NormFloat64() * 0.08)
			}
			body.put(v)
		}
		body.Write(make([]byte, -body.Len()&31))
		count++
	}
	tensor("token_embd.weight", false, tinyWidth, vocabulary)
	tensor("output_norm.weight", true, tinyWidth)
	tensor("output.weight", false, tinyWidth, vocabulary)
	for i := range tinyLayers {
		block := "blk." + string(rune('0'+i)) + "."
		tensor(block+"attn_norm.weight", true, tinyWidth)
		tensor(block+"ffn_norm.weight", true, tinyWidth)
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			tensor(block+name+".weight", false, tinyWidth, tinyWidth)
		}
		tensor(block+"ffn_gate.weight", false, tinyWidth, tinyInner)
		tensor(block+"ffn_up.weight", false, tinyWidth, tinyInner)
		tensor(block+"ffn_down.weight", false, tinyInner, tinyWidth)
	}
	return count
}

// byteTokens returns GPT-2's names of the 256 bytes and two control tokens.
func byteTokens() []string {
	tokens := make([]string, 256, 258)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= 33 && b < 127 || b >= 161 && b < 173 || b >= 174) {
			r, next = next, next+1
		}
		tokens[b] = string(r)
	}
	return append(tokens, "<|bos|>", "<|eos|>")
}
