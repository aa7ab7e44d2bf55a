package store

import (
	"os"
	"testing"

	"tms/internal/hermetic"
)

const mib = 1 << 20

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }
