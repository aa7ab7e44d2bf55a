// Generate writes the tables of package calls into the repository whose root is its argument.
package main

import (
	"log"
	"os"
	"path/filepath"

	"tms/forward/calls"
)

func main() {
	functions, err := calls.Load()
	if err != nil {
		log.Fatal(err)
	}
	for _, file := range calls.Tables(functions) {
		if err := os.WriteFile(filepath.Join(os.Args[1], file.Path), []byte(file.Text), 0o644); err != nil { //nolint:gosec
			log.Fatal(err)
		}
	}
}
