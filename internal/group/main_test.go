package group

import (
	"os"
	"testing"

	"tms/internal/aid/hermetic"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }
