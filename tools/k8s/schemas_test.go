package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSchemasAreStrict checks that schemas are named by kind, group and version, that
// they forbid unnamed fields, and that objects which allow any field are not changed.
func TestSchemasAreStrict(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{
		"swagger.json": `{"definitions":{
			"io.k8s.api.apps.v1.Thing":{"type":"object","x-kubernetes-group-version-kind":[{"group":"apps","version":"v1","kind":"Thing"}],
				"properties":{"spec":{"$ref":"#/definitions/io.k8s.api.apps.v1.ThingSpec"}}},
			"io.k8s.api.apps.v1.ThingSpec":{"type":"object","properties":{"size":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.api.resource.Quantity"}}},
			"io.k8s.apimachinery.pkg.api.resource.Quantity":{"type":"string"}}}`,
		"crd.yaml": `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
spec:
  group: keda.sh
  names: {kind: Scaled}
  versions:
    - name: v1alpha1
      schema:
        openAPIV3Schema:
          type: object
          properties:
            properties: {type: object, properties: {size: {x-kubernetes-int-or-string: true}}}
            any: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {a: {type: string}}}
`,
		"none.yaml": "kind: ConfigMap\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	swagger, out := filepath.Join(dir, "swagger.json"), filepath.Join(dir, "out")
	if err := writeSchemas(swagger, out, []string{filepath.Join(dir, "crd.yaml")}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"thing-apps-v1.json":        `{"additionalProperties":false,"properties":{"spec":{"$ref":"_definitions.json#/definitions/io.k8s.api.apps.v1.ThingSpec"}},"type":"object"}`,
		"scaled-keda-v1alpha1.json": `{"additionalProperties":false,"properties":{"any":{"properties":{"a":{"type":"string"}},"type":"object"},"properties":{"additionalProperties":false,"properties":{"size":{"type":["string","integer","number"]}},"type":"object"}},"type":"object"}`,
	} {
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v\nwant %s", name, got, err, want)
		}
	}
	var shared struct{ Definitions map[string]object }
	data, err := os.ReadFile(filepath.Join(out, definitionsFile))
	if err == nil {
		err = json.Unmarshal(data, &shared)
	}
	if err != nil || shared.Definitions["io.k8s.api.apps.v1.ThingSpec"]["additionalProperties"] != false {
		t.Errorf("got %s, %v: want a spec that takes no other field", data, err)
	}
	if err := writeSchemas(swagger, out, []string{filepath.Join(dir, "none.yaml")}); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("got %v for a file without a definition, want it named", err)
	}
}
