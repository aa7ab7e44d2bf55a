package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/vmm/stats"
)

const (
	defaultMetrics = "127.0.0.1:9400"
	scrapesAtOnce  = 4 // more are refused
	headerTime     = 5 * time.Second
	readTime       = 10 * time.Second // for a scrape and its reader, as Prometheus gives it by default
	idleTime       = time.Minute      // between two scrapes of a connection
	tagsMost       = 1000             // of a device of a process
	commandMost    = 1000             // characters
)

func metricsCommand() *cobra.Command {
	var listen string
	command := &cobra.Command{
		Use:   "metrics",
		Short: "Serve the state of all processes to Prometheus",
		Long: `Serves what tms ps shows to Prometheus, at /metrics, until it is interrupted.
Anybody who can reach the address can read it, commands included.`,
		Example: `  tms metrics
  tms metrics --listen 127.0.0.1:9500`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			listener, err := listenTCP(listen, defaultMetrics)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(command.OutOrStdout(), "http://%s/metrics\n", listener.Addr()); err != nil {
				return err
			}
			server, err := metricsServer(newCollector())
			if err != nil {
				return err
			}
			ctx, again := interruptible()
			context.AfterFunc(ctx, again) // a second signal ends the command
			return serveHTTP(ctx, server, listener)
		},
	}
	command.Flags().StringVar(&listen, "listen", defaultMetrics, "`ADDRESS` (port 0: any free)")
	completes(command, "listen")
	return command
}

func metricsServer(from prometheus.Collector) (*http.Server, error) {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(from); err != nil {
		return nil, err
	}
	paths := http.NewServeMux()
	paths.Handle("GET /metrics", promhttp.HandlerFor(registry,
		promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	return &http.Server{Handler: paths, ReadHeaderTimeout: headerTime, WriteTimeout: readTime,
		IdleTimeout: idleTime}, nil
}

// onDevice are the labels of a metric of a device: NVML's number of the GPU, or "" if NVML does not show it; its UUID; and
// the process's own number.
const onDevice = "gpu uuid device"

// metrics has all metrics but one, with their labels besides those that each has: pid, container and pod. Those whose
// names end in _total are counters, and never decrease while the process lives.
var metrics = map[string]struct{ labels, help string }{
	"process_up": {"", "Whether the process has answered."},
	"process_info": {"command version",
		"1, with the command of the process and the version of its library."},
	"process_busy":    {"", "Whether the process does what it was asked from outside, such as a pause."},
	"process_lost":    {"", "Whether the driver can never give the process back: end it."},
	"process_held_up": {"", "Whether threads of the process that give a device work wait for a resume."},
	"process_memory_wait_seconds": {"",
		"Under tms run --share, how long a thread of the process has waited for device memory, or 0 if no thread waits."},
	"process_idle_seconds": {"", "How long no call has given a device work, for processes of tms run."},
	"device_size_bytes":    {onDevice, "Memory of the device."},
	"device_free_bytes":    {onDevice, "Free memory of the device."},
	"device_untracked_bytes": {onDevice,
		"Memory of the device in use that the library does not know: of CUDA itself, of other processes."},
	"device_limit_bytes":  {onDevice, "The most that the process may have of the device, or 0 for no limit."},
	"limit_refused_total": {onDevice, "Allocations that the limit has refused."},
	"device_library_bytes": {onDevice + " library kind",
		"Device memory that CUDA itself gave, by the library that asked for it (with TMS_ACCOUNT)."},
	"device_process_bytes": {onDevice + " source",
		"All that the process has on the device, by NVML; source is where the figure comes from."},
	"device_unnamed_bytes": {onDevice,
		"Of that, what no tag, pool or library has: contexts, modules, local memory, what was not counted."},
	"tag_live_bytes":   {onDevice + " tag", "What the program has allocated, active and paused."},
	"tag_held_bytes":   {onDevice + " tag", "Device memory held now."},
	"tag_paused_bytes": {onDevice + " tag", "Device memory given up by pauses."},
	"tag_slack_bytes":  {onDevice + " tag", "Device memory held beyond what was asked for."},
	"tag_backup_bytes": {onDevice + " tag store", "Memory or files that hold contents, by where: host, disk or peer."},
	"tag_without_contents_bytes": {onDevice + " tag state",
		"Device memory without a backup: what was paused without contents (state paused), and what a pause would " +
			"free so (active)."},
	"tag_segments": {onDevice + " tag", "Allocations."},
	"tag_state": {onDevice + " tag state",
		"1 for the state that the tag is in: active, partly (paused) or paused."},
	"tag_paused_timestamp_seconds":     {onDevice + " tag", "When the last pause was done, of what is paused now."},
	"tag_last_pause_duration_seconds":  {onDevice + " tag", "How long the last pause took, or 0 before the first."},
	"tag_last_resume_duration_seconds": {onDevice + " tag", "How long the last resume took, or 0 before the first."},
	"pauses_total":                     {onDevice, "Pauses of memory of the device that succeeded."},
	"pause_bytes_total":                {onDevice, "Device memory that pauses have given back."},
	"pause_contents_bytes_total":       {onDevice, "Contents that pauses have saved."},
	"pause_seconds_total":              {onDevice, "Time that pauses of memory of the device took."},
	"resumes_total":                    {onDevice, "Resumes of memory of the device that succeeded."},
	"resume_bytes_total":               {onDevice, "Device memory that resumes have taken again."},
	"resume_contents_bytes_total":      {onDevice, "Contents that resumes have brought back."},
	"resume_seconds_total":             {onDevice, "Time that resumes of memory of the device took."},
}

// collector asks all processes at each scrape.
type collector struct {
	described  map[string]*prometheus.Desc
	unanswered prometheus.Counter
}

func newCollector() *collector {
	c := &collector{map[string]*prometheus.Desc{}, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tms_unanswered_total", Help: "How often a process did not answer a scrape."})}
	for name, m := range metrics {
		labels := append([]string{"pid", "container", "pod"}, strings.Fields(m.labels)...)
		c.described[name] = prometheus.NewDesc("tms_"+name, m.help, labels, nil)
	}
	return c
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, described := range c.described {
		to <- described
	}
	c.unanswered.Describe(to)
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	found := fleet.Ask(time.Second)
	shown, _ := fleet.GPUs() // without NVML there is no figure for everything
	fleet.Measure(found, shown)
	sent := map[string]bool{} // a process that names something twice must not end the scrape
	for _, p := range found {
		send := func(kind prometheus.ValueType, name string, value float64, labels ...string) {
			labels = append([]string{strconv.Itoa(p.PID), p.Container, p.Pod}, labels...)
			key := name + "\xff" + strings.Join(labels, "\xff")
			if sent[key] {
				return
			}
			sent[key] = true
			to <- prometheus.MustNewConstMetric(c.described[name], kind, value, labels...)
		}
		gauge := func(name string, value float64, labels ...string) {
			send(prometheus.GaugeValue, name, value, labels...)
		}
		gauge("process_up", one(p.Error == ""))
		if p.Error != "" {
			c.unanswered.Inc()
			continue
		}
		gauge("process_info", 1, readable.Cut(p.Command, commandMost), p.Stats.Version)
		gauge("process_busy", one(p.Doing != ""))
		gauge("process_held_up", one(p.HeldUp))
		gauge("process_lost", one(p.Lost()))
		if p.IdleSeconds != nil {
			gauge("process_idle_seconds", *p.IdleSeconds)
		}
		if p.Share != nil {
			gauge("process_memory_wait_seconds", max(0, p.Share.Waited))
		}
		for _, d := range p.Stats.Devices {
			device := deviceLabels(d.GPU, d.UUID, d.Device)
			if !p.Stats.Everything { // else the driver cannot be asked
				gauge("device_size_bytes", float64(d.TotalBytes), device...)
				gauge("device_free_bytes", float64(d.FreeBytes), device...)
				gauge("device_untracked_bytes", float64(d.UntrackedBytes), device...)
			}
			gauge("device_limit_bytes", float64(d.LimitBytes), device...)
			send(prometheus.CounterValue, "limit_refused_total", float64(d.LimitRefused), device...)
			for verb, total := range map[string]stats.Total{"pause": d.Pauses, "resume": d.Resumes} {
				send(prometheus.CounterValue, verb+"s_total", float64(total.Count), device...)
				send(prometheus.CounterValue, verb+"_bytes_total", float64(total.Bytes), device...)
				send(prometheus.CounterValue, verb+"_contents_bytes_total", float64(total.ContentsBytes), device...)
				send(prometheus.CounterValue, verb+"_seconds_total", total.Seconds, device...)
			}
			for _, t := range d.Tags[:min(len(d.Tags), tagsMost)] {
				collectTag(t, func(name string, value float64, labels ...string) {
					gauge("tag_"+name, value, slices.Concat(device, []string{t.Tag}, labels)...)
				})
			}
		}
		collectBytes(p, gauge)
	}
	c.unanswered.Collect(to)
}

// collectBytes adds what tms ps --bytes shows besides tags.
func collectBytes(p fleet.Process, gauge func(string, float64, ...string)) {
	for _, d := range p.Bytes {
		device := deviceLabels(d.GPU, d.UUID, d.Device)
		for _, part := range d.Parts {
			switch part.Kind {
			case control.Allocations, control.Pool, control.Graphs:
				gauge("device_library_bytes", float64(part.Bytes), append(device, part.Name, part.Kind)...)
			}
		}
		if d.Source != fleet.Unmeasured {
			gauge("device_process_bytes", float64(d.UsedBytes), append(device, d.Source)...)
			gauge("device_unnamed_bytes", float64(d.RestBytes), device...)
		}
	}
}

// deviceLabels returns the values of onDevice.
func deviceLabels(gpu *int, uuid string, device int) []string {
	number := ""
	if gpu != nil {
		number = strconv.Itoa(*gpu)
	}
	return []string{number, uuid, strconv.Itoa(device)}
}

func collectTag(t stats.Tag, gauge func(string, float64, ...string)) {
	gauge("live_bytes", float64(t.LiveBytes))
	gauge("held_bytes", float64(t.PhysicalBytes))
	gauge("paused_bytes", float64(t.PausedBytes))
	gauge("slack_bytes", float64(t.SlackBytes))
	gauge("backup_bytes", float64(t.HostBytes), "host")
	gauge("backup_bytes", float64(t.DiskBytes), "disk")
	gauge("backup_bytes", float64(t.PeerBytes()), "peer")
	gauge("without_contents_bytes", float64(t.PauseWithoutContents), "active")
	gauge("without_contents_bytes", float64(t.WithoutContents), "paused")
	gauge("segments", float64(t.Segments))
	gauge("state", one(t.AllPaused() == 0), "active")
	gauge("state", one(t.AllPaused() > 0 && t.AllActive() > 0), "partly")
	gauge("state", one(t.AllPaused() > 0 && t.AllActive() == 0), "paused")
	if t.AllPaused() > 0 {
		gauge("paused_timestamp_seconds", t.PausedSince)
	}
	gauge("last_pause_duration_seconds", t.LastPauseSeconds)
	gauge("last_resume_duration_seconds", t.LastResumeSeconds)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
