package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// schemaDir holds one JSON Schema for each kind of Kubernetes, named as
// kubeconform asks for them: KIND-GROUP-VERSION.json.
func schemaDir() string {
	return filepath.Join(cache(), "schemas", "kubernetes-"+kubernetes+"-1")
}

// schemas writes strict schemas from the API description that the module of
// Kubernetes brings along: a field that it does not name is an error.
func schemas(ctx context.Context) error {
	dir := schemaDir()
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	mod, err := moduleDir(ctx, "kubernetes", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(mod, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		return err
	}
	files, err := strictSchemas(raw)
	if err != nil {
		return err
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	for name, s := range files {
		out, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(tmp, name), out, 0o644); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}

type object = map[string]any

const definitions = "_definitions.json"

// strictSchemas turns a description in the form of Swagger 2 into schemas by file
// name; all refer to one file of definitions.
func strictSchemas(swagger []byte) (map[string]any, error) {
	var in struct {
		Definitions map[string]object `json:"definitions"`
	}
	if err := json.Unmarshal(swagger, &in); err != nil {
		return nil, err
	}
	defs, out := object{}, map[string]any{}
	for name, d := range in.Definitions {
		switch {
		case strings.HasSuffix(name, ".util.intstr.IntOrString"):
			defs[name] = oneOf("string", "integer")
		case strings.HasSuffix(name, ".api.resource.Quantity"):
			defs[name] = oneOf("string", "number")
		default:
			defs[name] = strict(d)
		}
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // helpers such as DeleteOptions stand in every group
			continue
		}
		k, _ := kinds[0].(object)
		group, _ := k["group"].(string)
		version, _ := k["version"].(string)
		kind, _ := k["kind"].(string)
		file := strings.ToLower(kind)
		if group != "" {
			file += "-" + strings.Split(group, ".")[0]
		}
		s, ok := strict(d).(object)
		if !ok {
			return nil, fmt.Errorf("definition %s is no object", name)
		}
		s["$schema"] = "http://json-schema.org/schema#"
		out[file+"-"+version+".json"] = s
	}
	out[definitions] = object{"definitions": defs}
	return out, nil
}

func oneOf(types ...string) object {
	var of []any
	for _, t := range types {
		of = append(of, object{"type": t})
	}
	return object{"oneOf": of}
}

// strict copies a definition, closes its objects and points its references to the
// file of definitions.
func strict(v any) any {
	switch t := v.(type) {
	case []any:
		out := make([]any, len(t))
		for i := range t {
			out[i] = strict(t[i])
		}
		return out
	case object:
		if ref, ok := t["$ref"].(string); ok {
			return object{"$ref": definitions + ref}
		}
		out := object{}
		for k, x := range t {
			if !strings.HasPrefix(k, "x-kubernetes-") {
				out[k] = strict(x)
			}
		}
		_, props := out["properties"].(object)
		if _, open := out["additionalProperties"]; props && !open && t["type"] == "object" {
			out["additionalProperties"] = false
		}
		return out
	default:
		return v
	}
}
