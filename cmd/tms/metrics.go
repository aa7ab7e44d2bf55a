package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"tms/internal/control"
	"tms/vmm/stats"
)

const (
	scrapesAtOnce = 4 // more are refused
	headerTime    = 5 * time.Second
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
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen %s: %w; give an address and a free port, such as 127.0.0.1:9400", listen,
					bare(err))
			}
			if _, err := fmt.Fprintf(command.OutOrStdout(), "http://%s/metrics\n", listener.Addr()); err != nil {
				return err
			}
			return serveMetrics(listener)
		},
	}
	command.Flags().StringVar(&listen, "listen", "127.0.0.1:9400", "`ADDRESS` (port 0: any free)")
	return command
}

func serveMetrics(listener net.Listener) error {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(newCollector()); err != nil {
		return err
	}
	paths := http.NewServeMux()
	paths.Handle("GET /metrics", promhttp.HandlerFor(registry,
		promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	server := &http.Server{Handler: paths, ReadHeaderTimeout: headerTime}
	ctx, _ := interruptible()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// collector asks all processes at each scrape.
type collector struct {
	up, info, doing, heldUp, idle                       *prometheus.Desc
	size, free, untracked                               *prometheus.Desc
	live, held, paused, slack, backup, without          *prometheus.Desc
	other, used, unnamed                                *prometheus.Desc
	segments, state, since, pauseSeconds, resumeSeconds *prometheus.Desc
	unanswered                                          prometheus.Counter
}

func newCollector() *collector {
	process := []string{"pid", "container", "pod"}
	of := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tms_"+name, help, append(append([]string{}, process...), labels...), nil)
	}
	device := func(name, help string) *prometheus.Desc { return of("device_"+name, help, "device") }
	tag := func(name, help string, labels ...string) *prometheus.Desc {
		return of("tag_"+name, help, append([]string{"device", "tag"}, labels...)...)
	}
	return &collector{
		up: of("process_up", "Whether the process has answered."),
		info: of("process_info", "1, with the command of the process and the version of its library.", "command",
			"version"),
		doing:  of("process_busy", "Whether the process does what it was asked from outside, such as a pause."),
		heldUp: of("process_held_up", "Whether threads of the process that give a device work wait for a resume."),
		idle:   of("process_idle_seconds", "How long no call has given a device work, for processes of tms run."),
		size:   device("size_bytes", "Memory of the device."),
		free:   device("free_bytes", "Free memory of the device."),
		untracked: device("untracked_bytes",
			"Memory of the device in use that the library does not know: of CUDA itself, of other processes."),
		other: of("device_library_bytes",
			"Device memory that CUDA itself gave, by the library that asked for it (with TMS_ACCOUNT).",
			"device", "library", "kind"),
		used: of("device_process_bytes",
			"All that the process has on the device, by NVML; source is where the figure comes from.",
			"device", "uuid", "source"),
		unnamed: of("device_unnamed_bytes",
			"Of that, what no tag, pool or library has: contexts, modules, local memory, what was not counted.",
			"device", "uuid"),
		live:   tag("live_bytes", "What the program has allocated, active and paused."),
		held:   tag("held_bytes", "Device memory held now."),
		paused: tag("paused_bytes", "Device memory given up by pauses."),
		slack:  tag("slack_bytes", "Device memory held beyond what was asked for."),
		backup: tag("backup_bytes", "Memory or files that hold contents, by where: host, disk or peer.", "store"),
		without: tag("without_contents_bytes",
			"Device memory without a backup: what was paused without contents (state paused), and what a pause would "+
				"free so (active).", "state"),
		segments:      tag("segments", "Allocations."),
		state:         tag("state", "1 for the state that the tag is in: active, partly (paused) or paused.", "state"),
		since:         tag("paused_timestamp_seconds", "When the last pause was done, of what is paused now."),
		pauseSeconds:  tag("last_pause_duration_seconds", "How long the last pause took; 0: there was none."),
		resumeSeconds: tag("last_resume_duration_seconds", "How long the last resume took; 0: there was none."),
		unanswered: prometheus.NewCounter(prometheus.CounterOpts{Name: "tms_unanswered_total",
			Help: "How often a process did not answer a scrape."}),
	}
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.info, c.doing, c.heldUp, c.idle, c.size, c.free, c.untracked, c.live,
		c.held, c.paused, c.slack, c.backup, c.without, c.other, c.used, c.unnamed,
		c.segments, c.state, c.since, c.pauseSeconds, c.resumeSeconds} {
		to <- d
	}
	c.unanswered.Describe(to)
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	found := statuses(time.Second)
	shown, _ := gpus() // without NVML there is no figure for everything
	measure(found, shown)
	for _, p := range found {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			labels = append([]string{strconv.Itoa(p.PID), p.Container, p.Pod}, labels...)
			to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
		gauge(c.up, one(p.Error == ""))
		if p.Error != "" {
			c.unanswered.Inc()
			continue
		}
		gauge(c.info, 1, p.Command, p.Stats.Version)
		gauge(c.doing, one(p.Doing != ""))
		gauge(c.heldUp, one(p.HeldUp))
		if p.IdleSeconds != nil {
			gauge(c.idle, *p.IdleSeconds)
		}
		for _, d := range p.Stats.Devices {
			device := strconv.Itoa(d.Device)
			if !p.Stats.Everything { // else the driver cannot be asked
				gauge(c.size, float64(d.TotalBytes), device)
				gauge(c.free, float64(d.FreeBytes), device)
				gauge(c.untracked, float64(d.UntrackedBytes), device)
			}
			for _, t := range d.Tags {
				c.tag(t, func(d *prometheus.Desc, value float64, labels ...string) {
					gauge(d, value, append([]string{device, t.Tag}, labels...)...)
				})
			}
		}
		c.bytes(p, gauge)
	}
	c.unanswered.Collect(to)
}

// bytes adds what tms ps --bytes shows besides tags.
func (c *collector) bytes(p process, gauge func(*prometheus.Desc, float64, ...string)) {
	for _, d := range p.Bytes {
		device := strconv.Itoa(d.Device)
		for _, part := range d.Parts {
			switch part.Kind {
			case control.Allocations, control.Pool, control.Graphs:
				gauge(c.other, float64(part.Bytes), device, part.Name, part.Kind)
			}
		}
		if d.Source != fromNobody {
			gauge(c.used, float64(d.UsedBytes), device, d.UUID, d.Source)
			gauge(c.unnamed, float64(d.RestBytes), device, d.UUID)
		}
	}
}

func (c *collector) tag(t stats.Tag, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(c.live, float64(t.LiveBytes))
	gauge(c.held, float64(t.PhysicalBytes))
	gauge(c.paused, float64(t.PausedBytes))
	gauge(c.slack, float64(t.SlackBytes))
	gauge(c.backup, float64(t.HostBytes), "host")
	gauge(c.backup, float64(t.DiskBytes), "disk")
	gauge(c.backup, float64(t.BackupBytes-t.HostBytes-t.DiskBytes), "peer")
	gauge(c.without, float64(t.PauseWithoutContents), "active")
	gauge(c.without, float64(t.WithoutContents), "paused")
	gauge(c.segments, float64(t.Segments))
	gauge(c.state, one(t.PausedBytes == 0), "active")
	gauge(c.state, one(t.PausedBytes > 0 && t.PhysicalBytes > 0), "partly")
	gauge(c.state, one(t.PausedBytes > 0 && t.PhysicalBytes == 0), "paused")
	if t.PausedBytes > 0 {
		gauge(c.since, t.PausedSince)
	}
	gauge(c.pauseSeconds, t.LastPauseSeconds)
	gauge(c.resumeSeconds, t.LastResumeSeconds)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
