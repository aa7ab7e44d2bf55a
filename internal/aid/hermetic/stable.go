package hermetic

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// Stable checks that today's T still has each field of a file of JSON, in which an earlier version filled all fields of
// its T: it reads the file, and writes again what it has read. With TMS_UPDATE_GOLDEN it first adds new fields to the
// file, but never takes one away.
func Stable[T any](t *testing.T, path string) {
	t.Helper()
	var today T
	fill(reflect.ValueOf(&today).Elem())
	wanted, err := json.MarshalIndent(today, "", "  ")
	require.NoError(t, err)
	earlier, err := os.ReadFile(path)
	if os.IsNotExist(err) && os.Getenv("TMS_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		earlier, err = []byte("null"), nil
	}
	require.NoError(t, err)

	var read T
	var before, after any
	decoder := json.NewDecoder(bytes.NewReader(earlier))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&read), "%s: a field is gone, or another type", path)
	again, err := json.Marshal(read)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(earlier, &before))
	require.NoError(t, json.Unmarshal(again, &after))
	if string(earlier) != "null" {
		requireAll(t, path, before, after)
	}

	if os.Getenv("TMS_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, append(wanted, '\n'), 0o644))
		return
	}
	require.JSONEq(t, string(wanted), string(earlier), "%s lacks a new field: TMS_UPDATE_GOLDEN=1 adds it", path)
}

// requireAll requires that all of a value of JSON is in another, which may have more fields.
func requireAll(t *testing.T, path string, before, after any) {
	t.Helper()
	switch before := before.(type) {
	case map[string]any:
		fields, _ := after.(map[string]any)
		for name, value := range before {
			require.Contains(t, fields, name, "%s: a field is gone", path)
			requireAll(t, path+": "+name, value, fields[name])
		}
	case []any:
		values, _ := after.([]any)
		require.Len(t, values, len(before), path)
		for i, value := range before {
			requireAll(t, path, value, values[i])
		}
	default:
		require.Equal(t, before, after, path)
	}
}

// fill gives a value, and all that it contains, something other than zero.
func fill(value reflect.Value) {
	switch value.Kind() {
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		value.SetInt(1)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		value.SetUint(1)
	case reflect.Float32, reflect.Float64:
		value.SetFloat(1.5)
	case reflect.String:
		value.SetString("text")
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem())
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0))
	case reflect.Map:
		value.Set(reflect.MakeMap(value.Type()))
		key, element := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
		fill(key)
		fill(element)
		value.SetMapIndex(key, element)
	case reflect.Array:
		for i := range value.Len() {
			fill(value.Index(i))
		}
	case reflect.Struct:
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				fill(value.Field(i))
			}
		}
	}
}
