package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

func parse(t *testing.T, text string) *pool.Options {
	t.Helper()
	options, err := pool.ParseOptions(text)
	require.NoError(t, err)
	return options
}

func TestOptionsAreTaken(t *testing.T) {
	o := parse(t, " size=3MiB, count=7,share=0.25,exact=Yes,name=a b ,empty=")
	require.Equal(t, uint64(3<<20), o.Bytes("size", 1))
	require.Equal(t, 7, o.Int("count", 1))
	require.Equal(t, 0.25, o.Fraction("share", 1))
	require.True(t, o.Bool("exact", false))
	require.Equal(t, "a b", o.Text("name", "x"))
	require.Empty(t, o.Text("empty", "x"))
	require.NoError(t, o.Err())
}

// As PyTorch writes roundup_power2_divisions.
func TestCommasWithinBracketsSeparateNothing(t *testing.T) {
	o := parse(t, "first=1,list=[256:1,512:2,>:4], last=2")
	require.Equal(t, 1, o.Int("first", 0))
	require.Equal(t, "[256:1,512:2,>:4]", o.Text("list", ""))
	require.Equal(t, 2, o.Int("last", 0))
	require.NoError(t, o.Err())
	o = parse(t, "open=[1,closed=1],last=2")
	require.Equal(t, "[1,closed=1]", o.Text("open", ""))
	o = parse(t, "wrong=1],last=2")
	require.Equal(t, 2, o.Int("last", 0))
}

func TestOptionsThatAreNotGivenHaveDefaults(t *testing.T) {
	for _, o := range []*pool.Options{nil, parse(t, ""), parse(t, "  ")} {
		require.Equal(t, uint64(5), o.Bytes("size", 5))
		require.Equal(t, 6, o.Int("count", 6))
		require.Equal(t, 0.5, o.Fraction("share", 0.5))
		require.True(t, o.Bool("exact", true))
		require.False(t, o.Bool("exact", false))
		require.Equal(t, "x", o.Text("name", "x"))
		require.NoError(t, o.Err())
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]uint64{
		"0":                  0,
		"512":                512,
		"2KiB":               2 << 10,
		"3GiB":               3 << 30,
		"131072TiB":          pool.MostBytes,
		"144115188075855872": pool.MostBytes,
	} {
		o := parse(t, "size="+text)
		require.Equal(t, want, o.Bytes("size", 1), text)
		require.NoError(t, o.Err(), text)
	}
	for _, text := range []string{"", "KiB", "-1", "1.5GiB", "1 KiB", "1K", "1KiBKiB", "131073TiB",
		"144115188075855873", "16777216TiB", "18446744073709551615", "18446744073709551616"} {
		o := parse(t, "size="+text)
		require.Equal(t, uint64(1), o.Bytes("size", 1), text)
		require.ErrorIs(t, o.Err(), pool.ErrOption, text)
	}
}

func TestValuesOutOfRangeAreRefused(t *testing.T) {
	for name, take := range map[string]func(*pool.Options, string){
		"Int":      func(o *pool.Options, key string) { require.Equal(t, 1, o.Int(key, 1)) },
		"Fraction": func(o *pool.Options, key string) { require.Equal(t, 1.0, o.Fraction(key, 1)) },
		"Bool":     func(o *pool.Options, key string) { require.True(t, o.Bool(key, true)) },
	} {
		for _, text := range []string{"", "-1", "2147483648", "NaN", "some"} {
			o := parse(t, "key="+text)
			take(o, "key")
			err := o.Err()
			require.ErrorIs(t, err, pool.ErrOption, "%s of %q", name, text)
			require.ErrorContains(t, err, "key=")
		}
	}
}

func TestTextThatIsNoSettings(t *testing.T) {
	for _, text := range []string{"size", "=3", ",", "a=1,", "a=1,a=2"} {
		_, err := pool.ParseOptions(text)
		require.ErrorIs(t, err, pool.ErrOption, text)
	}
}

func TestOptionsThatNobodyTakesAreNamed(t *testing.T) {
	o := parse(t, "zebra=1,size=2,apple=3")
	o.Bytes("size", 0)
	err := o.Err()
	require.ErrorIs(t, err, pool.ErrOption)
	require.ErrorContains(t, err, "apple, zebra")
	require.NotContains(t, err.Error(), "size")
}

func TestTheFirstMalformedOptionIsReported(t *testing.T) {
	o := parse(t, "a=x,b=y,c=1")
	o.Int("a", 0)
	o.Int("b", 0)
	require.ErrorContains(t, o.Err(), `a="x"`)
}
