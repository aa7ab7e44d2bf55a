package api

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
	"tms/internal/snapshot/tree"
)

// object is a part of the page.
type object = map[string]any

// The page has each route, and no other, and a schema for each body with the fields that the Go types have. With
// TMS_UPDATE_GOLDEN the schemas are written; the descriptions in them stay.
func TestOpenAPI(t *testing.T) {
	text, err := os.ReadFile("openapi.json")
	require.NoError(t, err)
	var page object
	require.NoError(t, json.Unmarshal(text, &page))

	var described []string
	for path, methods := range page["paths"].(object) {
		for method := range methods.(object) {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	var routes []string
	for _, r := range (&handler{}).routes() {
		routes = append(routes, r.pattern)
		require.Equal(t, r.change, !strings.HasPrefix(r.pattern, "GET "), r.pattern)
	}
	require.ElementsMatch(t, routes, described)

	written := page["components"].(object)["schemas"].(object)
	today := object{}
	for name, of := range map[string]reflect.Type{
		"PauseRequest": reflect.TypeFor[pauseRequest](), "ResumeRequest": reflect.TypeFor[resumeRequest](),
		"LendRequest": reflect.TypeFor[lendRequest](),
		"SwapRequest": reflect.TypeFor[swapRequest](), "MoveRequest": reflect.TypeFor[moveRequest](),
		"MoveSetRequest":  reflect.TypeFor[moveSetRequest](),
		"SnapshotRequest": reflect.TypeFor[snapshotRequest](), "RestoreRequest": reflect.TypeFor[restoreRequest](),
		"Snapshots": reflect.TypeFor[snapshots](), "Snapshot": reflect.TypeFor[tree.Taken](),
		"Restored": reflect.TypeFor[restored](),
		"Outcomes": reflect.TypeFor[outcomes](), "Plans": reflect.TypeFor[plans](),
		"AdvanceRequest": reflect.TypeFor[advanceRequest](), "Advanced": reflect.TypeFor[advanced](),
		"Sets": reflect.TypeFor[keptSets](), "Error": reflect.TypeFor[failure](),
		"Process": reflect.TypeFor[fleet.Process](), "Outcome": reflect.TypeFor[group.Outcome](),
		"Plan": reflect.TypeFor[group.Plan](), "KeptSet": reflect.TypeFor[control.KeptSet](),
	} {
		described, _ := written[name].(object)
		today[name] = schema(of, described, true, strings.HasSuffix(name, "Request"))
	}
	page["components"].(object)["schemas"] = today
	wanted, err := json.MarshalIndent(page, "", "  ")
	require.NoError(t, err)
	if os.Getenv("TMS_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile("openapi.json", append(wanted, '\n'), 0o644))
		return
	}
	require.JSONEq(t, string(wanted), string(text), "TMS_UPDATE_GOLDEN=1 writes the page")
	for _, part := range strings.Split(string(text), `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		require.Contains(t, today, name)
	}
}

// schemas have a name of their own in the page.
var schemas = map[reflect.Type]string{
	reflect.TypeFor[group.Outcome](): "Outcome", reflect.TypeFor[group.Plan](): "Plan",
	reflect.TypeFor[control.KeptSet](): "KeptSet",
}

// schema describes a type as JSON Schema, with the descriptions that there were. Of a request, no field must be given,
// and no other field may.
func schema(of reflect.Type, before object, top, request bool) object {
	made := object{}
	if name := schemas[of]; name != "" && !top {
		return object{"$ref": "#/components/schemas/" + name}
	}
	inner := func(key string) object { described, _ := before[key].(object); return described }
	switch of.Kind() {
	case reflect.Pointer:
		made = schema(of.Elem(), before, false, request)
		if kind, ok := made["type"].(string); ok && !request {
			made["type"] = []any{kind, "null"}
		}
	case reflect.Slice:
		made["type"], made["items"] = "array", schema(of.Elem(), inner("items"), false, request)
		if !request { // nil
			made["type"] = []any{"array", "null"}
		}
	case reflect.Map:
		made["type"] = "object"
		made["additionalProperties"] = schema(of.Elem(), inner("additionalProperties"), false, request)
	case reflect.Bool:
		made["type"] = "boolean"
	case reflect.String:
		made["type"] = "string"
	case reflect.Float64, reflect.Float32:
		made["type"] = "number"
	case reflect.Struct:
		properties, required := object{}, []string{}
		fields(of, inner("properties"), request, properties, &required)
		made["type"], made["properties"] = "object", properties
		if request {
			made["additionalProperties"] = false
		} else {
			slices.Sort(required)
			made["required"] = required
		}
	case reflect.Interface: // of any type
	default:
		made["type"] = "integer"
	}
	if description, ok := before["description"]; ok {
		made["description"] = description
	}
	return made
}

// fields adds those of a struct, and those of structs that it embeds.
func fields(of reflect.Type, before object, request bool, properties object, required *[]string) {
	for i := range of.NumField() {
		field := of.Field(i)
		tag := field.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case field.Anonymous && tag == "":
			fields(field.Type, before, request, properties, required)
			continue
		case name == "-" || name == "":
			continue
		case !strings.Contains(options, "omitempty"):
			*required = append(*required, name)
		}
		described, _ := before[name].(object)
		properties[name] = schema(field.Type, described, false, request)
	}
}

// Each field of a request is described.
func TestDescriptions(t *testing.T) {
	var page struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Description string }
			}
		}
	}
	require.NoError(t, json.Unmarshal(openAPI, &page))
	for _, name := range slices.Sorted(maps.Keys(page.Components.Schemas)) {
		if strings.HasSuffix(name, "Request") {
			for field, described := range page.Components.Schemas[name].Properties {
				require.NotEmpty(t, described.Description, "%s: %s", name, field)
			}
		}
	}
}
