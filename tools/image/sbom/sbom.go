// Package sbom says what is in an image, as an SPDX 2.3 document in JSON: the
// modules that the program itself says it was linked from, and what lies beside
// it. It reads the program, not the source: what is not linked is not listed.
package sbom

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// Part is something in the image that is not of the program.
type Part struct {
	Name, Version string
	PURL          string // package URL
	SHA256        string // hex, of its file; may be empty
	License       string // SPDX expression; empty is not known
}

// Subject is the image that the document describes.
type Subject struct {
	Name    string // service
	Version string
	Digest  string // of the image, sha256:…
	Parts   []Part
}

// Document is what matters of SPDX 2.3.
type Document struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      CreationInfo   `json:"creationInfo"`
	Packages          []Package      `json:"packages"`
	Relationships     []Relationship `json:"relationships"`
}

// CreationInfo says who made the document. Its time is fixed, as all of an image is.
type CreationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// Package is a module or another part.
type Package struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo,omitempty"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	SourceInfo       string        `json:"sourceInfo,omitempty"`
	Checksums        []Checksum    `json:"checksums,omitempty"`
	ExternalRefs     []ExternalRef `json:"externalRefs,omitempty"`
}

// Checksum of a package. That of a Go module is the one of go.sum, in hex: of the
// list of its files, not of one file; sourceInfo has it as go.sum does.
type Checksum struct {
	Algorithm     string `json:"algorithm"`
	ChecksumValue string `json:"checksumValue"`
}

// ExternalRef is a package URL, by which scanners know a package.
type ExternalRef struct {
	ReferenceCategory string `json:"referenceCategory"`
	ReferenceType     string `json:"referenceType"`
	ReferenceLocator  string `json:"referenceLocator"`
}

// Relationship between two packages.
type Relationship struct {
	SPDXElementID      string `json:"spdxElementId"`
	RelationshipType   string `json:"relationshipType"`
	RelatedSPDXElement string `json:"relatedSpdxElement"`
}

const none = "NOASSERTION"

// Of reads the program and describes the image around it. The same program and
// subject give the same bytes.
func Of(program string, s Subject) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("%s does not say what it is made of: %w", program, err)
	}
	doc := Document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
		Name:              s.Name + "-" + s.Version,
		DocumentNamespace: "https://github.com/anima-run/anima/sbom/" + s.Name + "/" + s.Digest,
		CreationInfo:      CreationInfo{Created: "1970-01-01T00:00:00Z", Creators: []string{"Tool: anima-image"}},
	}
	image := Package{
		SPDXID: "SPDXRef-image", Name: s.Name, VersionInfo: s.Version, SourceInfo: "image " + s.Digest,
		ExternalRefs: purl("pkg:oci/" + s.Name + "@" + strings.ReplaceAll(s.Digest, ":", "%3A")),
	}
	main := Package{SPDXID: "SPDXRef-program", Name: info.Main.Path, VersionInfo: s.Version, SourceInfo: "package " + info.Path}
	doc.add("SPDXRef-DOCUMENT", "DESCRIBES", image)
	doc.add(image.SPDXID, "CONTAINS", main)
	doc.add(main.SPDXID, "DEPENDS_ON", Package{
		SPDXID: "SPDXRef-go", Name: "stdlib", VersionInfo: strings.TrimPrefix(info.GoVersion, "go"),
		LicenseDeclared: "BSD-3-Clause", ExternalRefs: purl("pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go")),
	})
	deps := slices.Clone(info.Deps)
	slices.SortFunc(deps, func(a, b *debug.Module) int { return strings.Compare(a.Path, b.Path) })
	for i, m := range deps {
		doc.add(main.SPDXID, "DEPENDS_ON", module(i, m, s.Version))
	}
	for i, p := range s.Parts {
		pkg := Package{SPDXID: fmt.Sprintf("SPDXRef-part-%d", i), Name: p.Name, VersionInfo: p.Version, LicenseDeclared: p.License, ExternalRefs: purl(p.PURL)}
		if p.SHA256 != "" {
			pkg.Checksums = []Checksum{{"SHA256", p.SHA256}}
		}
		doc.add(image.SPDXID, "CONTAINS", pkg)
	}
	out, err := json.MarshalIndent(doc, "", " ")
	return append(out, '\n'), err
}

// module describes m. One that is replaced by a folder is of this repository and
// has its version.
func module(i int, m *debug.Module, version string) Package {
	p := Package{SPDXID: fmt.Sprintf("SPDXRef-module-%d", i), Name: m.Path, VersionInfo: m.Version}
	real := m
	if m.Replace != nil {
		real = m.Replace
		p.SourceInfo = "in place of " + m.Path + "@" + m.Version
		if strings.HasPrefix(real.Path, ".") || strings.HasPrefix(real.Path, "/") {
			p.VersionInfo, p.SourceInfo = version, "of the same repository"
			return p
		}
		p.Name, p.VersionInfo = real.Path, real.Version
	}
	p.ExternalRefs = purl("pkg:golang/" + real.Path + "@" + real.Version)
	if raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(real.Sum, "h1:")); err == nil && len(raw) == 32 {
		p.Checksums = []Checksum{{"SHA256", hex.EncodeToString(raw)}}
		p.SourceInfo = strings.TrimSpace(p.SourceInfo + " go.sum " + real.Sum)
	}
	return p
}

func purl(locator string) []ExternalRef {
	if locator == "" {
		return nil
	}
	return []ExternalRef{{"PACKAGE-MANAGER", "purl", locator}}
}

// add appends p with what SPDX asks for, related to what is there.
func (d *Document) add(from, how string, p Package) {
	for _, s := range []*string{&p.DownloadLocation, &p.LicenseConcluded, &p.LicenseDeclared, &p.CopyrightText} {
		if *s == "" {
			*s = none
		}
	}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, Relationship{from, how, p.SPDXID})
}
