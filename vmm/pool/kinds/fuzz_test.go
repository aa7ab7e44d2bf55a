package kinds_test

import (
	"testing"

	"tms/vmm/pool/internal/pooltest/conformance"
)

// FuzzEveryKind runs any program against any variant. The source has room for one or two of the largest
// segments only, so that it refuses by itself too.
func FuzzEveryKind(f *testing.F) {
	f.Fuzz(func(t *testing.T, number byte, operations []byte) {
		v := variants[int(number)%len(variants)]
		source := conformance.NewSource(8 << 30)
		p, err := v.make(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := conformance.Interpret(conformance.Check(p, source, v.traits), operations); err != nil {
			t.Fatalf("%s: %v", v, err)
		}
	})
}
