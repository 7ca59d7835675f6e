package graph_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/dtype"
	"github.com/moegraph/moegraph/graph"
	"github.com/moegraph/moegraph/nodes"
)

// browser returns a Chromium, and skips the test where there is none.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no chromium in the path: on Debian, apt-get install chromium")
	return ""
}

// openPage runs a script at the end of the page in a browser, and returns what it gives to done, as JSON.
func openPage(t *testing.T, page []byte, script string, into any) {
	t.Helper()
	chromium := browser(t)
	const mark = "result-of-the-test"
	tail := "<script>const done = (x) => { const e = document.createElement('pre'); e.id = '" + mark + "'; e.textContent = JSON.stringify(x); document.body.append(e); };\n" + script + "</script></body>"
	whole := bytes.Replace(page, []byte("</body>"), []byte(tail), 1)
	dir := t.TempDir()
	path := filepath.Join(dir, "page.html")
	check(t, os.WriteFile(path, whole, 0o666))
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	_, after, ok := strings.Cut(string(out), `<pre id="`+mark+`">`)
	text, _, ok2 := strings.Cut(after, "</pre>")
	if !ok || !ok2 {
		t.Fatalf("the page's script did not get to its end:\n%.2000s", out)
	}
	check(t, json.Unmarshal([]byte(html.UnescapeString(text)), into))
}

func pageOf(t *testing.T, p *graph.Program) []byte {
	t.Helper()
	var b bytes.Buffer
	check(t, p.WriteHTML(&b))
	return b.Bytes()
}

// TestProgram_HTML: the page has every step, workspace and shape, and asks nobody for anything.
func TestProgram_HTML(t *testing.T) {
	for name, p := range plans(t) {
		page := string(pageOf(t, p))
		for _, s := range p.Steps() {
			for _, v := range s.Out {
				if v != nil && !strings.Contains(page, html.EscapeString(v.Text())) {
					t.Errorf("%s: no shape of %s", name, v)
				}
			}
			if !strings.Contains(page, html.EscapeString(s.Name)) {
				t.Errorf("%s: no step %q", name, s.Name)
			}
		}
		for _, b := range p.Workspaces() {
			if b.Size > 0 && b.First < b.Last && !strings.Contains(page, html.EscapeString(b.Name)+": ") {
				t.Errorf("%s: no workspace %q", name, b.Name)
			}
		}
		if found := regexp.MustCompile(`https?:|//[a-z]+\.|url\(|@import|src=`).FindString(page); found != "" {
			t.Errorf("%s: the page refers to %q", name, found)
		}
		if measured := strings.Contains(page, "<h2>measured: "); measured != (name == "profiled") {
			t.Errorf("%s: measured times %v", name, measured)
		}
	}
	// Names are text, whatever they hold.
	g := graph.New("</script><script>alert(1)</script>")
	x := g.Input("x", dtype.Float32, 4)
	y := x.Scale(2)
	y.Named(`</script><img src=x onerror="alert(1)">`)
	g.Output("y", y)
	if page := string(pageOf(t, compile(t, g, graph.Options{}))); strings.Contains(page, "<img") || strings.Contains(page, "<script>alert") {
		t.Error("a name becomes markup")
	}
}

// model is some MoE layers one after the other, forward and backward.
func model(layers int) *graph.Graph {
	g, vars := graph.New("model"), graph.NewVars(1)
	x := g.Input("x", dtype.BFloat16, graph.UpTo(64), 64)
	for i := range layers {
		y, _ := nodes.MoELayer(x, vars.Scope(fmt.Sprintf("layer%d", i)), nodes.MoE{Experts: 4, TopK: 2, Hidden: 64, Intermediate: 32})
		x = x.Plus(y)
	}
	params := vars.All()
	dy := g.Input("dy", dtype.BFloat16, graph.UpTo(64), 64)
	g.Output("x", x)
	for i, v := range g.GradientsFrom([]*graph.Value{x}, []*graph.Value{dy}, params...).Value {
		g.Output(fmt.Sprintf("grad%d", i), v)
	}
	return g
}

// TestProgram_HTML_Browser opens the page of about 500 steps in a real browser: it is there soon, without an
// error, and every part of it answers to mouse and keyboard.
func TestProgram_HTML_Browser(t *testing.T) {
	if raceEnabled {
		t.Skip("the page is the same without the race detector")
	}
	g := model(22)
	check(t, g.Err())
	free := compile(t, g, graph.Options{Streams: 4, ForceStreams: true})
	if n := len(free.Steps()); n < 480 || n > 700 {
		t.Fatalf("%d steps, want about 500", n)
	}
	var got struct {
		Ready, Title, First, Last, Next, Clicked, Found string
		Errors                                          []string
		Marked, ClickedMarked, Rows, Hidden, Panes      int
		OverlapX, Focus                                 bool
		LoadMS                                          float64
		TabStops                                        []string
	}
	openPage(t, pageOf(t, free), `
const errors = [];
addEventListener("error", (e) => errors.push(String(e.message)));
const r = {Errors: errors, Ready: document.body.dataset.ready, Title: document.title, LoadMS: performance.now()};
const details = () => document.getElementById("details").textContent;
const key = (e, k) => e.dispatchEvent(new KeyboardEvent("keydown", {key: k, bubbles: true, cancelable: true}));
const panes = [...document.querySelectorAll(".pane")];
r.Panes = panes.length;
r.TabStops = [...document.querySelectorAll("a, input, .pane[tabindex], tr[tabindex='0']")].filter((e) => e.tabIndex >= 0).map((e) => e.tagName);
panes[0].focus();
r.Focus = document.activeElement === panes[0];
key(panes[0], "Home"); r.First = details();
key(panes[0], "ArrowRight"); r.Next = details();
key(panes[1], "End"); r.Last = details();
r.Marked = document.querySelectorAll(".on").length;
const box = document.querySelector("g.buffer");
box.querySelector("rect").dispatchEvent(new MouseEvent("click", {bubbles: true}));
r.Clicked = details();
r.ClickedMarked = document.querySelectorAll("tr.on, [data-step].on").length;
key(document.body, "/");
const find = document.getElementById("find");
find.value = "layer7/fc1";
find.dispatchEvent(new Event("input"));
r.Rows = document.querySelectorAll("tbody tr").length;
r.Hidden = [...document.querySelectorAll("tbody tr")].filter((e) => e.hidden).length;
key(find, "Enter"); r.Found = details();
r.OverlapX = document.documentElement.scrollWidth > innerWidth;
done(r);`, &got)
	n := len(free.Steps())
	if got.Ready != fmt.Sprint(n) || len(got.Errors) > 0 || got.Rows != n || got.Panes != 4 || got.OverlapX || !got.Focus {
		t.Errorf("%d steps: got %+v", n, got)
	}
	for i, want := range map[int]string{0: got.First, 1: got.Next, n - 1: got.Last} {
		if !strings.HasPrefix(want, fmt.Sprintf("%d  %s", i, free.Steps()[i].Name)) {
			t.Errorf("step %d: the page says %q", i, want)
		}
	}
	if first := free.Workspaces()[0]; !strings.HasPrefix(got.Clicked, fmt.Sprintf("%d  ", first.First)) || got.ClickedMarked < 3 || got.Marked < 3 {
		t.Errorf("a click on %s: %q, %d and %d marked", first.Name, got.Clicked, got.ClickedMarked, got.Marked)
	}
	if !strings.Contains(got.Found, "layer7/fc1") || got.Hidden == 0 || got.Hidden >= n {
		t.Errorf("the search finds %q, %d of %d hidden", got.Found, got.Hidden, n)
	}
	if len(got.TabStops) != 4+3+1+1 {
		t.Errorf("tab stops %q, want four links, three panes, the search and one row", got.TabStops)
	}
	t.Logf("%d steps, %d KiB, %.0f ms until it is drawn and its script has run", n, len(pageOf(t, free))>>10, got.LoadMS)
	if got.LoadMS > 6000 { // a second or so on an idle machine
		t.Errorf("the page takes %.0f ms", got.LoadMS)
	}
}
