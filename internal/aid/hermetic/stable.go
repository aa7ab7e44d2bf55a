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
	decoder := json.NewDecoder(bytes.NewReader(earlier))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&read), "%s: a field is gone, or another type", path)
	if string(earlier) != "null" {
		again, err := json.Marshal(read)
		require.NoError(t, err)
		require.JSONEq(t, string(earlier), string(again), "%s: a field is gone, or means something else", path)
	}

	if os.Getenv("TMS_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, append(wanted, '\n'), 0o644))
		return
	}
	require.JSONEq(t, string(wanted), string(earlier), "%s lacks a new field: TMS_UPDATE_GOLDEN=1 adds it", path)
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
