package doctor

import (
	"fmt"
	"regexp"
	"strings"
)

// environment holds variables by name.
type environment map[string]string

func parseEnvironment(entries []string) environment {
	env := environment{}
	for _, entry := range entries {
		if name, value, ok := strings.Cut(entry, "="); ok {
			if _, twice := env[name]; !twice { // getenv returns the first
				env[name] = value
			}
		}
	}
	return env
}

// preloads returns the entries of LD_PRELOAD.
func (e environment) preloads() []string {
	return strings.FieldsFunc(e["LD_PRELOAD"], func(c rune) bool { return c == ' ' || c == ':' })
}

var asyncBackend = regexp.MustCompile(`(?i)backend\s*:\s*cudaMallocAsync`)

func (r *Report) examineEnvironment(env environment) {
	r.examinePyTorchSettings(env)

	// The driver shows the devices up to the first that does not exist, and -1 never does.
	visible, set := env["CUDA_VISIBLE_DEVICES"]
	if first, _, _ := strings.Cut(visible, ","); set &&
		(strings.TrimSpace(first) == "" || strings.TrimSpace(first) == "-1") {
		r.add(Error, "visible-devices", fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q hides every device", visible),
			"unset it, or name the devices to use")
	}

	value, set := env["NCCL_GRAPH_REGISTER"]
	if value != "0" && (set || r.Program.has("libnccl.so") || r.Program.python()) {
		what := "NCCL_GRAPH_REGISTER is not set (its default is 1)"
		if set {
			what = fmt.Sprintf("NCCL_GRAPH_REGISTER=%q", value)
		}
		r.add(Note, "nccl-graphs", what+": NCCL registers the buffers of collectives captured into CUDA graphs, which "+
			"ties them to their physical memory", "set NCCL_GRAPH_REGISTER=0 to pause memory that such graphs use")
	}
}

func (r *Report) examinePyTorchSettings(env environment) {
	// A wrong setting harms only PyTorch, so it is an error only in a program that has it.
	severity, who := Warning, "if the program uses PyTorch, its"
	if r.Program.has("libc10_cuda.so") {
		severity, who = Error, "PyTorch's"
	}
	for _, variable := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		value := env[variable]
		if asyncBackend.MatchString(value) {
			r.add(severity, "async-backend",
				fmt.Sprintf("%s=%q: %s memory comes from cudaMallocAsync, which is not pausable, and regions are "+
					"refused", variable, value, who), "start it without backend:cudaMallocAsync")
		}
	}
}
