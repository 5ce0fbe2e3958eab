package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
)

// object is any JSON object.
type object = map[string]any

// definitionsFile is the name of the file with the definitions that schemas of
// Kubernetes' own kinds refer to.
const definitionsFile = "_definitions.json"

// writeSchemas writes one strict JSON schema for each kind, named as kubeconform expects:
// those of Kubernetes from its OpenAPI document, those of custom kinds from files of
// CustomResourceDefinitions.
func writeSchemas(swagger, out string, crds []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if err := nativeSchemas(swagger, out); err != nil {
		return err
	}
	var errs []error
	for _, file := range crds {
		if err := customSchemas(file, out); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
	}
	return errors.Join(errs...)
}

func nativeSchemas(swagger, out string) error {
	data, err := os.ReadFile(swagger)
	if err != nil {
		return err
	}
	var doc struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %w", swagger, err)
	}
	definitions := object{}
	for name, d := range doc.Definitions {
		switch {
		case strings.HasSuffix(name, ".intstr.IntOrString"):
			definitions[name] = object{"type": []any{"string", "integer"}}
		case strings.HasSuffix(name, ".resource.Quantity"):
			definitions[name] = object{"type": []any{"string", "number"}}
		default:
			definitions[name] = strict(d)
		}
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // several kinds: options of requests, which do not occur in manifests
			continue
		}
		kind, _ := kinds[0].(object)
		file := schemaFile(fmt.Sprint(kind["group"]), fmt.Sprint(kind["version"]), fmt.Sprint(kind["kind"]))
		if err := writeJSON(filepath.Join(out, file), strict(d)); err != nil {
			return err
		}
	}
	if len(definitions) == 0 {
		return fmt.Errorf("%s defines nothing", swagger)
	}
	return writeJSON(filepath.Join(out, definitionsFile), object{"definitions": definitions})
}

// customSchemas writes the schemas of every served version in a file.
func customSchemas(file, out string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	found := false
	for decoder := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		var crd struct {
			Kind string `json:"kind"`
			Spec struct {
				Group string `json:"group"`
				Names struct {
					Kind string `json:"kind"`
				} `json:"names"`
				Versions []struct {
					Name   string `json:"name"`
					Schema struct {
						OpenAPI object `json:"openAPIV3Schema"`
					} `json:"schema"`
				} `json:"versions"`
			} `json:"spec"`
		}
		if err := decoder.Decode(&crd); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return err
		}
		if crd.Kind != "CustomResourceDefinition" {
			continue
		}
		for _, v := range crd.Spec.Versions {
			found = true
			schema, _ := strict(v.Schema.OpenAPI).(object)
			if err := writeJSON(filepath.Join(out, schemaFile(crd.Spec.Group, v.Name, crd.Spec.Names.Kind)), schema); err != nil {
				return err
			}
		}
	}
	if !found {
		return errors.New("no CustomResourceDefinition in it")
	}
	return nil
}

// schemaFile returns the file name that kubeconform uses for a kind's schema.
func schemaFile(group, version, kind string) string {
	group, _, _ = strings.Cut(group, ".")
	if group != "" {
		group += "-"
	}
	return strings.ToLower(kind + "-" + group + version + ".json")
}

// strict returns a copy of a schema that forbids fields which it does not name.
func strict(v any) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = strict(v[i])
		}
		return list
	case object:
		if ref, ok := v["$ref"].(string); ok {
			return object{"$ref": definitionsFile + ref}
		}
		if v["x-kubernetes-int-or-string"] == true {
			return object{"type": []any{"string", "integer", "number"}}
		}
		made := object{}
		for key, value := range v {
			fields, ok := value.(object)
			switch {
			case strings.HasPrefix(key, "x-kubernetes-"):
			case key == "properties" && ok: // names of fields, not keywords of the schema
				named := object{}
				for name, field := range fields {
					named[name] = strict(field)
				}
				made[key] = named
			default:
				made[key] = strict(value)
			}
		}
		if _, ok := made["properties"].(object); ok && made["additionalProperties"] == nil && v["x-kubernetes-preserve-unknown-fields"] != true {
			made["additionalProperties"] = false
		}
		return made
	}
	return v
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
