// Command nvrtc compiles a CUDA source file to PTX with NVIDIA's runtime compiler (NVRTC User Guide,
// "Basic Usage"): nvrtc LIBRARY ARCHITECTURE SOURCE OUTPUT. It needs no GPU and no toolkit.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: nvrtc LIBRARY ARCHITECTURE SOURCE OUTPUT, as in nvrtc libnvrtc.so.12 "+
			"compute_70 a.cu a.ptx")
		os.Exit(2)
	}
	if err := compile(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "nvrtc:", err)
		os.Exit(1)
	}
}

func compile(library, architecture, source, output string) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	handle, err := purego.Dlopen(library, purego.RTLD_NOW)
	if err != nil {
		return err
	}
	var (
		create   func(program *uintptr, source, name string, headers int32, sources, names uintptr) int32
		run      func(program uintptr, options int32, values **byte) int32
		logSize  func(program uintptr, size *uintptr) int32
		log      func(program uintptr, text *byte) int32
		ptxSize  func(program uintptr, size *uintptr) int32
		ptx      func(program uintptr, text *byte) int32
		programs uintptr
	)
	purego.RegisterLibFunc(&create, handle, "nvrtcCreateProgram")
	purego.RegisterLibFunc(&run, handle, "nvrtcCompileProgram")
	purego.RegisterLibFunc(&logSize, handle, "nvrtcGetProgramLogSize")
	purego.RegisterLibFunc(&log, handle, "nvrtcGetProgramLog")
	purego.RegisterLibFunc(&ptxSize, handle, "nvrtcGetPTXSize")
	purego.RegisterLibFunc(&ptx, handle, "nvrtcGetPTX")

	read := func(size func(uintptr, *uintptr) int32, get func(uintptr, *byte) int32) (string, error) {
		var n uintptr
		if code := size(programs, &n); code != 0 || n == 0 {
			return "", fmt.Errorf("nvrtc result %d", code)
		}
		buffer := make([]byte, n)
		if code := get(programs, &buffer[0]); code != 0 {
			return "", fmt.Errorf("nvrtc result %d", code)
		}
		return strings.TrimRight(string(buffer), "\x00"), nil
	}
	if code := create(&programs, string(text), filepath.Base(source), 0, 0, 0); code != 0 {
		return fmt.Errorf("nvrtcCreateProgram: result %d", code)
	}
	options := []string{"--gpu-architecture=" + architecture, "--include-path=" + filepath.Dir(source), "--std=c++14"}
	values := make([]*byte, len(options))
	for i, option := range options {
		values[i] = unsafe.StringData(option + "\x00")
	}
	code := run(programs, int32(len(values)), &values[0])
	runtime.KeepAlive(values)
	if code != 0 {
		words, err := read(logSize, log)
		return errors.Join(fmt.Errorf("nvrtcCompileProgram: result %d\n%s", code, words), err)
	}
	made, err := read(ptxSize, ptx)
	if err != nil {
		return err
	}
	return os.WriteFile(output, []byte(made), 0o644)
}
