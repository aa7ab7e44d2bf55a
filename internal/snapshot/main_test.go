package snapshot

import (
	"os"
	"testing"

	"tms/internal/aid/hermetic"
)

func TestMain(m *testing.M) {
	if os.Getenv(writesIn) != "" { // it is killed, and cannot remove folders of its own
		os.Exit(m.Run())
	}
	os.Exit(hermetic.Main(m))
}
