// Package sbom describes the content of an image as an SPDX 2.3 document in JSON: the
// modules that the program records as linked, and the other parts of the image. It reads
// the program and not the source, so a module that is not linked is not listed. It must
// not access the network.
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

// Part is a part of the image other than the program.
type Part struct {
	Name, Version string
	PURL          string // package URL
	SHA256        string // of its file, hexadecimal; may be empty
	License       string // SPDX expression; empty means unknown
}

// Subject is the image that the document describes.
type Subject struct {
	Name    string // service
	Version string
	Digest  string // of the image, sha256:…
	Parts   []Part
}

// Document holds the parts of SPDX 2.3 that are used.
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

// CreationInfo describes the creation of the document. Its time is fixed, like all times
// of an image.
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

// Checksum is the checksum of a package. For a Go module it is the hash of go.sum in
// hexadecimal: of the list of its files, not of one file. The field sourceInfo has it in
// the form of go.sum.
type Checksum struct {
	Algorithm     string `json:"algorithm"`
	ChecksumValue string `json:"checksumValue"`
}

// ExternalRef is a package URL, by which scanners identify a package.
type ExternalRef struct {
	ReferenceCategory string `json:"referenceCategory"`
	ReferenceType     string `json:"referenceType"`
	ReferenceLocator  string `json:"referenceLocator"`
}

// Relationship is a relationship between two packages.
type Relationship struct {
	SPDXElementID      string `json:"spdxElementId"`
	RelationshipType   string `json:"relationshipType"`
	RelatedSPDXElement string `json:"relatedSpdxElement"`
}

const none = "NOASSERTION"

// Of reads the program and describes the image that contains it. The same program and
// subject give the same bytes.
func Of(program string, s Subject) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, fmt.Errorf("%s has no build information: %w", program, err)
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

// module describes m. A module that is replaced by a folder is part of this repository
// and has its version.
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

// add appends p with the fields that SPDX requires, and relates it to the element from.
func (d *Document) add(from, how string, p Package) {
	for _, s := range []*string{&p.DownloadLocation, &p.LicenseConcluded, &p.LicenseDeclared, &p.CopyrightText} {
		if *s == "" {
			*s = none
		}
	}
	d.Packages = append(d.Packages, p)
	d.Relationships = append(d.Relationships, Relationship{from, how, p.SPDXID})
}
