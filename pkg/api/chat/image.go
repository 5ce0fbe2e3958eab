package chat

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	_ "image/gif"  // the decoder of the size
	_ "image/jpeg" // likewise
	_ "image/png"  // likewise
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of the images of a prompt. Encoded as base64, the images of the largest prompt
// leave about a megabyte of the largest message of NATS and the largest HTTP request, which
// have 8 MiB, for its texts. No provider takes an image of more than 5 MB in all its
// protocols.
const (
	MaxImages     = 20
	MaxImageBytes = 5 << 20 // of all images of a prompt together
	maxImageURL   = 2048    // bytes
)

// The details of images.
const (
	detailLow  = "low"
	detailHigh = "high"
	detailAuto = "auto"
)

// mediaTypes are the media types that all providers read.
//
//nolint:gochecknoglobals // a table
var mediaTypes = []string{"image/png", "image/jpeg", "image/gif", "image/webp"}

// CheckImages returns an error for images that no provider may receive: outside of
// messages of the user and results, too many or too large, of another media type than the four that all
// providers read, with bytes of another type than they claim, or at an address that is not
// an https URL.
func CheckImages(messages []api.ChatMessage) error {
	count, size := 0, 0
	for i := range messages {
		m := &messages[i]
		if len(m.Images) > 0 && m.Role != User && m.Role != ToolRole {
			return fmt.Errorf("message %d: a message of the role %s cannot have images", i, m.Role)
		}
		at := 0
		for _, picture := range m.Images {
			count++
			size += len(picture.Data)
			if err := checkImage(picture); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
			if picture.At < at || picture.At > len(m.Content) {
				return fmt.Errorf("message %d: the place of an image is before the previous one or outside of the text", i)
			}
			at = picture.At
		}
	}
	switch {
	case count > MaxImages:
		return fmt.Errorf("the prompt has %d images, more than %d", count, MaxImages)
	case size > MaxImageBytes:
		return fmt.Errorf("the images of the prompt have %d bytes, more than %d", size, MaxImageBytes)
	}
	return nil
}

func checkImage(i api.Image) error {
	switch i.Detail {
	case "", detailLow, detailHigh, detailAuto:
	default:
		return fmt.Errorf("the detail of an image is %.20q, which is none of low, high, auto", i.Detail)
	}
	if len(i.Data) == 0 {
		return checkURL(i.URL)
	}
	if i.URL != "" {
		return errors.New("an image has both data and an address")
	}
	if !slices.Contains(mediaTypes, i.MediaType) {
		return fmt.Errorf("an image has the media type %.40q, which is none of %s", i.MediaType, strings.Join(mediaTypes, ", "))
	}
	if real := http.DetectContentType(i.Data); real != i.MediaType {
		return fmt.Errorf("the bytes of an image of the media type %s are of the type %s", i.MediaType, real)
	}
	return nil
}

func checkURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || len(address) > maxImageURL {
		return fmt.Errorf("an image needs data, or an https URL of at most %d bytes without a user", maxImageURL)
	}
	return nil
}

// ImageOf returns the image at an address: a data URL with base64, or the URL of a server.
// It does not check the image; see [CheckImages].
func ImageOf(address string) (api.Image, error) {
	rest, inline := strings.CutPrefix(address, "data:")
	if !inline {
		return api.Image{URL: address}, nil
	}
	head, encoded, ok := strings.Cut(rest, ",")
	media, isBase64 := strings.CutSuffix(head, ";base64")
	if !ok || !isBase64 {
		return api.Image{}, errors.New("the data URL of an image must be data:<media type>;base64,<data>")
	}
	return ImageData(media, encoded)
}

// ImageData returns an image of base64. It does not check the image.
func ImageData(media, encoded string) (api.Image, error) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(data) == 0 {
		return api.Image{}, errors.New("the data of an image is not base64")
	}
	if media == "image/jpg" { // a common name of the type
		media = "image/jpeg"
	}
	return api.Image{MediaType: media, Data: data}, nil
}

// Address returns the URL of an image, a data URL if it has data.
func Address(i api.Image) string {
	if len(i.Data) == 0 {
		return i.URL
	}
	return "data:" + i.MediaType + ";base64," + base64.StdEncoding.EncodeToString(i.Data)
}

// Part is a part of a message: a text, or an image.
type Part struct {
	Text  string
	Image *api.Image // nil: a text
}

// Parts returns the texts and images of a message in order. The newline that joins a text
// with an image is not a part of the text, and blank texts are left out.
func Parts(m api.ChatMessage) []Part {
	var out []Part
	at := 0
	text := func(s string) {
		if strings.TrimSpace(s) != "" {
			out = append(out, Part{Text: s})
		}
	}
	for i := range m.Images {
		to := max(at, min(m.Images[i].At, len(m.Content)))
		text(strings.TrimSuffix(inner(m.Content[at:to], at > 0 || i > 0), "\n"))
		out = append(out, Part{Image: &m.Images[i]})
		at = to
	}
	text(inner(m.Content[at:], len(m.Images) > 0))
	return out
}

// inner returns a text without the newline that joins it with what is before it.
func inner(s string, joined bool) string {
	if joined {
		return strings.TrimPrefix(s, "\n")
	}
	return s
}

// Builder makes the content of a message from any number of parts, in linear time. The zero
// value is ready to use.
type Builder struct {
	text   strings.Builder
	images []api.Image
}

// Add appends a text or an image, as [Parts] returns them.
func (b *Builder) Add(p Part) {
	if p.Image != nil {
		picture := *p.Image
		picture.At = 0
		b.join(api.ChatMessage{Images: []api.Image{picture}})
		return
	}
	b.join(api.ChatMessage{Content: p.Text})
}

// join appends the text and the images of a message.
func (b *Builder) join(m api.ChatMessage) {
	if b.text.Len() > 0 && m.Content != "" {
		b.text.WriteByte('\n')
	}
	for _, picture := range m.Images {
		picture.At += b.text.Len()
		b.images = append(b.images, picture)
	}
	b.text.WriteString(m.Content)
}

// Fill sets the text and the images of a message.
func (b *Builder) Fill(m *api.ChatMessage) { m.Content, m.Images = b.text.String(), b.images }

// Add appends a text or an image to a message, as [Parts] returns them. It copies the
// message; [Builder] is for many parts.
func Add(m *api.ChatMessage, p Part) {
	var b Builder
	b.join(*m)
	b.Add(p)
	b.Fill(m)
}

// join appends the text and the images of a message to another one of the same role.
func join(to *api.ChatMessage, m api.ChatMessage) {
	var b Builder
	b.join(*to)
	b.join(m)
	b.Fill(to)
}

// Estimates of the tokens of an image. Providers count an image by its pixels, in ways that
// differ: tiles of 512 pixels with at most 1,445 tokens, patches of 32 pixels with up to
// 2.46 tokens each and at most 1,536 of them (OpenAI), a token for 750 pixels (Anthropic),
// patches of 28 pixels with at most 16,384 (Qwen).
const (
	imageTokens    = 1500   // of the smallest image
	maxImageTokens = 16_384 // also of an image whose size is unknown
	patch          = 32     // pixels
)

// ImageTokens returns an upper bound of the tokens of an image: 1,500, and 2.5 for each
// patch of 32 × 32 pixels, at most 16,384 together, which is also the bound of an image
// whose size is unknown. [DenseImages] names the exception.
func ImageTokens(i api.Image) int64 {
	width, height, ok := size(i.Data)
	if !ok {
		return maxImageTokens
	}
	patches := ((width + patch - 1) / patch) * ((height + patch - 1) / patch)
	return min(maxImageTokens, imageTokens+5*patches/2)
}

// DenseImages returns the tokens that a model counts for an image beyond [ImageTokens]: the
// models gpt-4o-mini count up to 48,169, because their prices do not differ by the kind of
// the prompt.
func DenseImages(model string) int64 {
	if strings.Contains(model, "gpt-4o-mini") {
		return 48_169
	}
	return 0
}

// maxPixels bounds the width and height that are believed.
const maxPixels = 1 << 16

// size returns the width and height of an image in pixels. It reads only the head.
func size(data []byte) (width, height int64, ok bool) {
	c, _, err := image.DecodeConfig(bytes.NewReader(data))
	width, height = int64(c.Width), int64(c.Height)
	if err != nil {
		width, height = webpSize(data)
	}
	return width, height, width > 0 && height > 0 && width <= maxPixels && height <= maxPixels
}

// webpSize returns the size of a WebP image, 0 if it has none
// (https://developers.google.com/speed/webp/docs/riff_container).
func webpSize(data []byte) (width, height int64) {
	if len(data) < 30 || string(data[:4]) != "RIFF" || string(data[8:12]) != "WEBP" {
		return 0, 0
	}
	switch head := data[20:]; string(data[12:16]) {
	case "VP8X": // 24 bits each, less one
		return 1 + int64(head[4]) + int64(head[5])<<8 + int64(head[6])<<16, 1 + int64(head[7]) + int64(head[8])<<8 + int64(head[9])<<16
	case "VP8L": // 14 bits each, less one, after a byte
		bits := int64(binary.LittleEndian.Uint32(head[1:]))
		return 1 + bits&0x3FFF, 1 + bits>>14&0x3FFF
	case "VP8 ": // 14 bits each, after the tag of the frame and its start code
		return int64(binary.LittleEndian.Uint16(head[6:])) & 0x3FFF, int64(binary.LittleEndian.Uint16(head[8:])) & 0x3FFF
	}
	return 0, 0
}
