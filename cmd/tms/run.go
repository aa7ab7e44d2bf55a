package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/program"
)

// notTaken are libraries that hand buffers of their own to network cards and to other processes, from which a pause
// would pull the memory away. The names are those in the wheels of NCCL 2.32, NVSHMEM 3.8, UCX 1.22 and NIXL 1.5: in
// UCX, parts that libuct loads allocate. libucm_cuda is left out, because UCX leads every cudaMalloc through it.
var notTaken = []string{"libnccl.so", "libnvshmem_host.so", "nvshmem_transport_gpunetio.so",
	"nvshmem_transport_ibdevx.so",
	"nvshmem_transport_ibgda.so", "nvshmem_transport_ibrc.so", "nvshmem_transport_libfabric.so", "libuct_cuda.so",
	"libuct_ib_mlx5_gda.so", "libuct_ib_mlx5_gdp.so", "libfabric.so"}

// backups are the variables that say where contents wait.
var backups = map[string]string{"host": "TMS_INIT_ENABLE_CPU_BACKUP", "disk": "TMS_INIT_ENABLE_DISK_BACKUP",
	"peer": "TMS_INIT_ENABLE_PEER_BACKUP", "sparse": "TMS_INIT_ENABLE_SPARSE_BACKUP"}

// isOn reads a variable as libtms.so does.
func isOn(variable string) bool {
	return slices.Contains([]string{"1", "true", "yes"}, strings.ToLower(os.Getenv(variable)))
}

func runCommand() *cobra.Command {
	var tag, backup, kind, trace string
	var incremental, noInherit, noRings, account bool
	var simulated simulation
	var shared sharedRun
	command := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program with all of its CUDA memory pausable",
		Long: `Runs a program so that all of its CUDA memory can be paused, from outside:
tms run -- python train.py`,
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) == 0 || arguments[0] == "" {
				return errors.New("name the command to run: tms run -- python train.py")
			}
			set := map[string]string{"TMS_INIT_ENABLE": "1", "TMS_CONTROL": "1"}
			variable, known := backups[backup]
			if !known && backup != "none" {
				return fmt.Errorf("--backup %s: contents can wait in host memory (host; sparse: without blocks of "+
					"zeros), in files (disk) or in the free memory of other GPUs (peer), or not be kept (none)", backup)
			}
			if incremental && backup != "host" {
				return errors.New("--incremental needs --backup host: it keeps copies in host memory")
			}
			asked := incremental || command.Flags().Changed("backup")
			for _, other := range backups {
				switch {
				case other == variable || !isOn(other):
				case asked:
					set[other] = "0"
				default:
					variable = "" // as it is set
				}
			}
			if err := notEmpty(command, "tag", `"default"`); err != nil {
				return err
			}
			if kind != "" {
				name, options, _ := strings.Cut(kind, ":")
				if _, err := program.New(name, options, nil, nil, nil); err != nil {
					return fmt.Errorf("--pool %s: %w", kind, err)
				}
			}
			if folder := filepath.Dir(trace); !strings.Contains(folder, "%p") && !isFolder(folder) {
				return fmt.Errorf("--trace %s: there is no folder %[2]s: make it first", readable.Printable(trace),
					readable.Printable(folder))
			}
			for name, value := range map[string]string{"TMS_INIT_TAG": tag, "TMS_INIT_POOL": kind, "TMS_TRACE": trace} {
				if value != "" {
					set[name] = value
				}
			}
			for name, wanted := range map[string]bool{variable: variable != "", "TMS_ACCOUNT": account,
				"TMS_INIT_ENABLE_INCREMENTAL_BACKUP": incremental, "TMS_NO_INHERIT": noInherit} {
				if wanted {
					set[name] = "1"
				}
			}
			if err := shared.set(command, set); err != nil {
				return err
			}
			libraries, err := libraries()
			if err != nil {
				return err
			}
			if err := simulated.set(command, libraries[0], set); err != nil {
				return err
			}
			set["LD_PRELOAD"] = strings.Join(libraries, ":")
			// AddressSanitizer refuses to start behind another library, unless it is told not to look.
			set["ASAN_OPTIONS"] = strings.TrimSuffix("verify_asan_link_order=0:"+os.Getenv("ASAN_OPTIONS"), ":")
			set["TMS_EXCLUDE"] = joined(append(notTaken, strings.Split(os.Getenv("TMS_EXCLUDE"), ":")...))
			path, err := exec.LookPath(arguments[0])
			if err != nil {
				for cause := err; cause != nil; cause = errors.Unwrap(cause) {
					err = cause // without the program's name, which the others have
				}
				return notRunError{fmt.Errorf("%s cannot be run: %w", readable.Printable(arguments[0]), err)}
			}
			if noRings {
				if err := withoutRings(); err != nil {
					return err
				}
			}
			return notRunError{fmt.Errorf("%s cannot be run: %w", readable.Printable(path),
				syscall.Exec(path, arguments, environment(os.Environ(), set)))}
		},
	}
	command.Flags().SetInterspersed(false)
	command.ValidArgsFunction = completeProgram
	command.Flags().StringVar(&tag, "tag", "", "`TAG` of its memory (default \"default\")")
	command.Flags().StringVar(&backup, "backup", "host", "`WHERE`: host, sparse, disk, peer or none")
	completes(command, "tag")
	completes(command, "backup", append(slices.Sorted(maps.Keys(backups)), "none")...)
	command.Flags().BoolVar(&incremental, "incremental", false, "copy only what has changed since the last pause")
	command.Flags().StringVar(&kind, "pool", "", "`POOL` to allocate from, see docs/pools.md")
	completes(command, "pool", kinds.Names()...)
	command.Flags().BoolVar(&noInherit, "no-inherit", false, "do not preload the programs that it starts")
	command.Flags().BoolVar(&noRings, "no-io-uring", false, "without io_uring, which no snapshot can have")
	command.Flags().BoolVar(&account, "account", false, "count what is not pausable, for tms ps --bytes")
	command.Flags().StringVar(&trace, "trace", "", "record to `FILE` (%p: the process) for tms report")
	simulated.add(command)
	shared.add(command)
	return command
}

// sharedRun are the flags of a program that shares its devices.
type sharedRun struct {
	on       bool
	priority float64
	atLeast  duration
}

func (s *sharedRun) add(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVar(&s.on, "share", false, "others of --share lend it memory, and it lends to them")
	flags.Float64Var(&s.priority, "priority", 0, "with --share: a higher `N` gets memory first")
	addTime(command, &s.atLeast, "at-least", 0, "with --share: `TIME` that it runs before it lends")
	flags.String("limit", "", "most `BYTES` it may have of a device, such as 40G")
	flags.String("host-limit", "", "with --share: most `N` bytes of host memory for contents")
	completes(command, "priority")
	completes(command, "limit")
	completes(command, "host-limit")
}

// set adds the program's variables.
func (s *sharedRun) set(command *cobra.Command, variables map[string]string) error {
	atLeast := command.Flags().Changed("at-least")
	if !s.on && (atLeast || command.Flags().Changed("priority") || command.Flags().Changed("host-limit")) {
		return errors.New("--priority, --at-least and --host-limit say how a program shares: give --share, too")
	}
	if math.IsNaN(s.priority) || math.IsInf(s.priority, 0) {
		return fmt.Errorf("--priority %v: give a number, such as 1", s.priority)
	}
	if s.on {
		variables["TMS_SHARE"] = "1"
		variables["TMS_SHARE_PRIORITY"] = fmt.Sprint(s.priority)
	}
	if atLeast {
		variables["TMS_SHARE_AT_LEAST"] = fmt.Sprint(s.atLeast.Seconds())
	}
	for flag, variable := range map[string]string{"limit": "TMS_LIMIT_BYTES", "host-limit": "TMS_SHARE_HOST_BYTES"} {
		if given := command.Flags().Lookup(flag); given.Changed {
			bytes, err := sizeOf("--"+flag, given.Value.String())
			if err != nil {
				return err
			}
			variables[variable] = fmt.Sprint(bytes)
		}
	}
	return nil
}

// notRunError says why the program of tms run did not start.
type notRunError struct{ error }

// status returns the exit status that a shell gives: 127 for a program that is not there, 126 for one that cannot be
// executed.
func (e notRunError) status() int {
	if errors.Is(e.error, exec.ErrNotFound) || errors.Is(e.error, fs.ErrNotExist) {
		return 127
	}
	return 126
}

// environment returns the program's environment: own, with the variables of set.
func environment(own []string, set map[string]string) []string {
	var made []string
	for _, entry := range own {
		name, value, _ := strings.Cut(entry, "=")
		if name == "LD_PRELOAD" {
			set[name] = joined(append(strings.Split(set[name], ":"), strings.FieldsFunc(value, separates)...))
		}
		if _, ours := set[name]; !ours {
			made = append(made, entry)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		made = append(made, name+"="+set[name])
	}
	return made
}

func separates(r rune) bool { return r == ' ' || r == ':' || r == '\t' || r == '\n' }

// joined returns each name once, with colons between the names.
func joined(names []string) string { return strings.Join(fleet.Distinct(names), ":") }
