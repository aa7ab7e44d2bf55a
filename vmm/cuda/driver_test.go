package cuda

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each function that is called is one that Load looks up, and the other way round.
func TestNames(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	called := []string{"cuGetErrorString"} // by errorText
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "call" {
				name, err := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
				require.NoError(t, err)
				called = append(called, name)
			}
			return true
		})
	}
	slices.Sort(called)
	require.ElementsMatch(t, slices.Concat(required, optional), slices.Compact(called))
}
