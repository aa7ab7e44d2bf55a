package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// prometheusProgram finds a program of Prometheus: an installed one, or the one that scripts/check.sh has fetched.
func prometheusProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path := filepath.Join("..", "..", "build", "prometheus", name)
	if _, err := os.Stat(path); err != nil {
		hermetic.Missing(t, name)
	}
	return path
}

// dashboard is the part of docs/grafana.json that the test checks.
type dashboard struct {
	Templating struct {
		List []struct {
			Name       string
			Definition string
		}
	}
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr string }
	}
}

func readDashboard(t *testing.T) (found dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "grafana.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &found))
	return found
}

// Prometheus takes the configurations in the documents.
func TestScrapeConfigurations(t *testing.T) {
	promtool := prometheusProgram(t, "promtool")
	for _, page := range []string{"cli.md", "containers.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		require.NoError(t, err)
		found := regexp.MustCompile("(?s)```yaml\n(scrape_configs:.*?)```").FindSubmatch(text)
		require.NotNil(t, found, page)
		path := filepath.Join(t.TempDir(), "prometheus.yml")
		// Debian's promtool does not know Kubernetes.
		known := bytes.Replace(found[1], []byte("    kubernetes_sd_configs:\n      - role: pod\n"), nil, 1)
		require.NoError(t, os.WriteFile(path, known, 0o600))
		out, err := exec.Command(promtool, "check", "config", path).CombinedOutput()
		require.NoError(t, err, "%s: %s", page, out)
	}
}

func serving(t *testing.T) (server *steered, address string) {
	t.Helper()
	server = startProgram(t, exec.Command(tms, "metrics", "--listen", "127.0.0.1:0"))
	return server, server.line()
}

// The dashboard shows what is served: a Prometheus that scrapes two processes has a series for each of its queries.
func TestDashboard(t *testing.T) {
	promtool, prometheus := prometheusProgram(t, "promtool"), prometheusProgram(t, "prometheus")
	onOneDevice(t)
	program, gated := steeredProgram(t), reaching(t)
	one, other := startSteered(t, program, gated, "TMS_ACCOUNT=1"), startSteered(t, program, gated)
	one.do("own 4")
	succeeds(t, "pause", other.number())
	_, address := serving(t)

	reply, err := http.Get(address)
	require.NoError(t, err)
	text, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	complaints, err := check.CombinedOutput()
	require.NoError(t, err, "%s", complaints)
	require.Empty(t, string(complaints))

	folder := t.TempDir()
	target, err := url.Parse(address)
	require.NoError(t, err)
	theirs, err := url.Parse(dcgm(t, []float64{128 << 20}))
	require.NoError(t, err)
	settings := filepath.Join(folder, "prometheus.yml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, `
global: {scrape_interval: 2s, scrape_timeout: 2s}
scrape_configs:
- job_name: tms
  honor_labels: true
  static_configs: [{targets: ["%s"]}]
- job_name: dcgm
  static_configs: [{targets: ["%s"]}]
`, target.Host, theirs.Host), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0") // it cannot choose a free one itself
	require.NoError(t, err)
	base := "http://" + free.Addr().String()
	require.NoError(t, free.Close())
	server := exec.Command(prometheus, "--config.file="+settings, "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address="+strings.TrimPrefix(base, "http://"), "--log.level=warn")
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	ask := func(path string, parameters url.Values) (data json.RawMessage, err error) {
		reply, err := http.Get(base + path + "?" + parameters.Encode())
		if err != nil {
			return nil, err
		}
		defer func() { _ = reply.Body.Close() }()
		var answer struct {
			Status, Error string
			Data          json.RawMessage
		}
		if err = json.NewDecoder(reply.Body).Decode(&answer); err == nil && answer.Status != "success" {
			err = fmt.Errorf("%s: %s", parameters.Encode(), answer.Error)
		}
		return answer.Data, err
	}
	series := func(query string) (found []struct{ Metric map[string]string }) {
		t.Helper()
		var result struct {
			Result []struct{ Metric map[string]string }
		}
		data, err := ask("/api/v1/query", url.Values{"query": {query}})
		require.NoError(t, err, query)
		require.NoError(t, json.Unmarshal(data, &result), query)
		return result.Result
	}
	// Prometheus takes a scrape of a busy machine as failed after two seconds, and then has nothing until the next.
	eventually := func(query string, count int) {
		t.Helper()
		require.Eventually(t, func() bool {
			data, err := ask("/api/v1/query", url.Values{"query": {query}})
			return err == nil && strings.Count(string(data), `"metric":`) >= count
		}, 10*time.Minute, 50*time.Millisecond, "%s: %s", query, &said)
	}
	eventually("count_over_time(tms_process_up[1m]) >= 2", 2)

	queries := 0
	place := map[[2]int]string{} // columns and rows
	ids := map[int]bool{}
	board := readDashboard(t)
	for _, p := range board.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, place[[2]int{x, y}], p.Title)
				place[[2]int{x, y}] = p.Title
			}
		}
		require.NotEmpty(t, p.Targets, p.Title)
		for _, query := range p.Targets {
			queries++
			// As Grafana does, with all hosts chosen.
			text := strings.NewReplacer("$instance", ".*", "$gpu", ".*", "$__rate_interval", "1m").Replace(query.Expr)
			require.NotContains(t, text, "$", "a variable that is not known")
			eventually(text, 1)
		}
	}
	require.Greater(t, queries, 10)
	for _, variable := range board.Templating.List {
		if variable.Definition == "" {
			continue
		}
		parts := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(variable.Definition)
		require.NotNil(t, parts, variable.Definition)
		data, err := ask("/api/v1/label/"+parts[2]+"/values", url.Values{"match[]": {parts[1]}})
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("[%q]", map[string]string{"instance": target.Host, "gpu": "0"}[parts[2]]), string(data))
	}

	// The joins with DCGM's exporter that the documents show find the GPU.
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	require.NoError(t, err)
	joins := regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllSubmatch(page, -1)
	require.Len(t, joins, 2)
	for _, join := range joins {
		query := strings.ReplaceAll(string(join[1]), "12345", one.number())
		eventually(query, 1)
		found := series(query)
		require.Len(t, found, 1)
		require.Equal(t, uuidOf(0), found[0].Metric["UUID"])
		require.NotEmpty(t, found[0].Metric["Hostname"])
	}

	// Paused and active tags can be told apart.
	eventually(fmt.Sprintf(`tms_tag_state{state="paused", pid="%s"} == 1`, other.number()), 2)
	require.Empty(t, series(fmt.Sprintf(`tms_tag_state{state="paused", pid="%s"} == 1`, one.number())))
	eventually(`tms_process_idle_seconds >= 0`, 2)
}
