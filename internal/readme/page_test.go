package readme

import (
	"bytes"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const picture = "plan.png"

// TestPage: README shows a picture of a plan's page. MOEGRAPH_UPDATE=1 takes it anew, with chromium.
func TestPage(t *testing.T) {
	if os.Getenv("MOEGRAPH_UPDATE") != "" {
		takePicture(t)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "](internal/readme/"+picture+")") {
		t.Errorf("README.md does not show internal/readme/%s", picture)
	}
	b, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if size := img.Bounds().Size(); size.X < 1000 || size.Y < 1000 || len(b) > 400<<10 {
		t.Errorf("the picture has %v pixels in %d bytes", size, len(b))
	}
}

// takePicture writes the page of the small layer as planned for an H200 and has a browser draw it. The graph is cut, so that
// all parts are seen.
func takePicture(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium in the path: on Debian, apt-get install chromium")
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "plan.html")
	if out, err := exec.Command("go", "run", "../../cmd/moegraph", "plan", "-shape", "small", "-backward", "-device", "plan:sm_90", "-html", page).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte("</head>"), []byte("<style>#graph .pane { max-height: 420px }</style></head>"), 1)
	if err := os.WriteFile(page, b, 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,1640",
		"--user-data-dir="+filepath.Join(dir, "profile"), "--screenshot="+filepath.Join(dir, picture), "file://"+page).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shot, err := os.ReadFile(filepath.Join(dir, picture))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(picture, shot, 0o644); err != nil {
		t.Fatal(err)
	}
}
