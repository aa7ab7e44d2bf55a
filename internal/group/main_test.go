package group

import (
	"os"
	"testing"

	"tms/internal/hermetic"
)

func TestMain(m *testing.M) { os.Exit(hermetic.Main(m)) }
