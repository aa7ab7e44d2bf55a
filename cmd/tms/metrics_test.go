package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// scraped is the text that Prometheus would read.
type scraped struct {
	t        *testing.T
	families map[string]*dto.MetricFamily
}

func scrape(t *testing.T, address string) scraped {
	t.Helper()
	text := served(t, address)
	if len(text) < 1<<18 { // it compares each metric with each
		lint(t, text)
	}
	return families(t, text)
}

// served returns the text of an exporter.
func served(t *testing.T, address string) []byte {
	t.Helper()
	reply, err := http.Get(address)
	require.NoError(t, err)
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, reply.StatusCode, "%s", text)
	return text
}

func families(t *testing.T, text []byte) scraped {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(t, err)
	return scraped{t, families}
}

func lint(t *testing.T, text []byte) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(text)).Lint() // as promtool check metrics does
	require.NoError(t, err)
	require.Empty(t, problems)
}

// values returns the values of a family's metrics that have labels like these, NAME=VALUE.
func (s scraped) values(family string, labels ...string) (found []float64) {
	s.t.Helper()
	require.Contains(s.t, s.families, family)
metrics:
	for _, m := range s.families[family].Metric {
		for _, wanted := range labels {
			name, value, _ := strings.Cut(wanted, "=")
			has := false
			for _, l := range m.Label {
				has = has || l.GetName() == name && l.GetValue() == value
			}
			if !has {
				continue metrics
			}
		}
		found = append(found, m.GetGauge().GetValue()+m.GetCounter().GetValue())
	}
	return found
}

func TestMetrics(t *testing.T) {
	large, small, _ := pair(t)
	server, address := serving(t)
	one, other := "pid="+small.number(), "pid="+large.number()
	const mib = 1 << 20
	s := scrape(t, address)
	for s.values("tms_process_up")[0]+s.values("tms_process_up")[1] < 2 { // each has a second to answer
		s = scrape(t, address)
	}
	require.Equal(t, []float64{1}, s.values("tms_process_info", one, "command="+small.Path, "version="+version))
	require.Equal(t, []float64{24 * mib}, s.values("tms_tag_held_bytes", one, "device=0", "tag=weights"))
	require.Equal(t, []float64{0}, s.values("tms_tag_held_bytes", other, "device=0", "tag=weights"))
	require.Equal(t, []float64{48 * mib}, s.values("tms_tag_paused_bytes", other, "tag=weights"))
	require.Equal(t, []float64{48 * mib}, s.values("tms_tag_backup_bytes", other, "tag=weights", "store=host"))
	require.Equal(t, []float64{8 * mib, 0}, s.values("tms_tag_without_contents_bytes", one, "tag=cache"))
	require.Equal(t, []float64{0, 16 * mib}, s.values("tms_tag_without_contents_bytes", other, "tag=cache"))
	require.Equal(t, []float64{0, 0}, s.values("tms_tag_without_contents_bytes", one, "tag=weights"))
	require.Equal(t, []float64{70 * mib}, s.values("tms_device_size_bytes", one))
	require.Equal(t, []float64{38 * mib}, s.values("tms_device_free_bytes", one))
	require.Equal(t, []float64{1}, s.values("tms_tag_state", one, "tag=cache", "state=active"))
	require.Equal(t, []float64{1}, s.values("tms_tag_state", other, "tag=cache", "state=paused"))
	require.Equal(t, []float64{0}, s.values("tms_tag_state", other, "tag=cache", "state=active"))
	require.Len(t, s.values("tms_tag_paused_timestamp_seconds"), 2)
	unanswered := s.values("tms_unanswered_total")[0]
	totals := func(pid string) (found []float64) {
		for _, name := range []string{"pauses", "pause_bytes", "pause_contents_bytes", "resumes", "resume_bytes",
			"resume_contents_bytes"} {
			found = append(found, s.values("tms_"+name+"_total", pid, "device=0")...)
			require.Equal(t, dto.MetricType_COUNTER, s.families["tms_"+name+"_total"].GetType())
		}
		return found
	}
	require.Equal(t, []float64{0, 0, 0, 0, 0, 0}, totals(one))
	require.Equal(t, []float64{1, 64 * mib, 48 * mib, 0, 0, 0}, totals(other))
	require.Positive(t, s.values("tms_pause_seconds_total", other, "device=0")[0])
	require.Zero(t, s.values("tms_resume_seconds_total", other, "device=0")[0])

	succeeds(t, "swap", small.number(), large.number())
	stop(t, small.Process)
	for s = scrape(t, address); s.values("tms_process_up", other)[0] < 1; s = scrape(t, address) {
	}
	require.NoError(t, small.Process.Signal(syscall.SIGCONT))
	require.Equal(t, []float64{0}, s.values("tms_process_up", one))
	require.Empty(t, s.values("tms_tag_held_bytes", one))
	require.Equal(t, []float64{1}, s.values("tms_tag_state", other, "tag=weights", "state=active"))
	require.Greater(t, s.values("tms_unanswered_total")[0], unanswered)
	require.Equal(t, []float64{1, 64 * mib, 48 * mib, 1, 64 * mib, 48 * mib}, totals(other))

	reply, err := http.Get(strings.TrimSuffix(address, "/metrics") + "/other")
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusNotFound, reply.StatusCode)
	taken := strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/metrics")
	require.Contains(t, fails(t, exitUsage, "tms: --listen "+taken+": ", "metrics", "--listen", taken),
		"address already in use")
	require.NoError(t, server.Process.Signal(os.Interrupt))
	require.NoError(t, server.Wait())
}

// A process that says much, and the same twice, does not keep others from being scraped.
func TestMetricsOfAProcessThatRepeatsItself(t *testing.T) {
	ownSockets(t)
	repeats, other := answering(t, "repeats").number(), answering(t, "agrees").number()
	_, address := serving(t)
	s := scrape(t, address)
	for s.values("tms_process_up", "pid="+repeats)[0]+s.values("tms_process_up", "pid="+other)[0] < 2 {
		s = scrape(t, address) // each has a second to answer
	}
	require.Equal(t, []float64{1}, s.values("tms_tag_live_bytes", "pid="+other))
	require.LessOrEqual(t, len(s.values("tms_tag_live_bytes", "pid="+repeats)), tagsMost)
}

// patient is a reader's end that takes nothing. Its time limit comes when the test says so.
type patient struct {
	net.Conn
	limits chan time.Time
}

func (p patient) SetWriteDeadline(limit time.Time) error {
	if !limit.IsZero() {
		p.limits <- limit
	}
	return nil
}

// connections is a listener. Its clients are pipes, so a write waits until it is read.
type connections chan net.Conn

func (c connections) Addr() net.Addr { return &net.UnixAddr{} }
func (c connections) Close() error   { return nil }
func (c connections) Accept() (net.Conn, error) {
	if client, ok := <-c; ok {
		return client, nil
	}
	return nil, http.ErrServerClosed
}

// Readers that take no bytes keep others from being scraped, and only until their time is over.
func TestMetricsOfSlowReaders(t *testing.T) {
	server, err := metricsServer(prometheus.NewCounter(prometheus.CounterOpts{Name: "long_total",
		Help: strings.Repeat("more than a server keeps before it writes ", 1<<12)}))
	require.NoError(t, err)
	clients := make(connections)
	served := make(chan error, 1)
	go func() { served <- server.Serve(clients) }()
	asks := func(conn net.Conn) {
		_, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
	}
	scrape := func() int {
		here, there := net.Pipe()
		defer here.Close()
		clients <- there
		asks(here)
		reply, err := http.ReadResponse(bufio.NewReader(here), nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, reply.Body)
		require.NoError(t, err)
		return reply.StatusCode
	}

	var slow []patient
	for scrape() != http.StatusServiceUnavailable {
		here, there := net.Pipe()
		defer here.Close()
		slow = append(slow, patient{there, make(chan time.Time, 1)})
		clients <- slow[len(slow)-1]
		asks(here)
	}
	require.GreaterOrEqual(t, len(slow), scrapesAtOnce)
	for _, reader := range slow {
		require.LessOrEqual(t, time.Until(<-reader.limits), readTime)
		require.NoError(t, reader.Conn.SetWriteDeadline(time.Now()))
	}
	for scrape() != http.StatusOK {
	}
	close(clients)
	require.ErrorIs(t, <-served, http.ErrServerClosed)
}
