package fleet

import (
	"os"
	"strings"
)

// JobsOf returns the jobs of a process, which are launches on this host. It knows them by the variables that their
// launcher set (/proc/PID/environ), and returns none where the environment cannot be read.
func JobsOf(pid int) (jobs []string) {
	text, _ := os.ReadFile(procFile(pid, "environ"))
	e := map[string]string{}
	for entry := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		e[name] = value
	}
	// The launch's name in torchrun (default "none"), Open MPI, Slurm, and any starter of torch.distributed.
	jobs = append(jobs, strings.TrimPrefix(e["TORCHELASTIC_RUN_ID"], "none"))
	if e["OMPI_COMM_WORLD_SIZE"] != "" {
		jobs = append(jobs, e["PMIX_NAMESPACE"])
	}
	jobs = append(jobs, e["SLURM_JOB_ID"])
	if e["MASTER_ADDR"] != "" && e["MASTER_PORT"] != "" {
		jobs = append(jobs, e["MASTER_ADDR"]+":"+e["MASTER_PORT"])
	}
	return Distinct(jobs)
}
