package kinds_test

import (
	"testing"
)

// FuzzEveryKind runs any program against any variant. The source has room for one or two of the largest
// segments only, so that it refuses by itself too.
func FuzzEveryKind(f *testing.F) {
	f.Fuzz(func(t *testing.T, number byte, operations []byte) {
		v := variants[int(number)%len(variants)]
		source := NewSource(8 << 30)
		p, err := v.make(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := Interpret(Check(p, source, v.traits), operations); err != nil {
			t.Fatalf("%s: %v", v, err)
		}
	})
}
