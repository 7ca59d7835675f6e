package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files below a new folder, by slash-separated name.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// long is a text of its own of at least minSplitBytes.
func long(name string) string { return strings.Repeat(name+".", 1+minSplitBytes/(len(name)+1)) }

// texts takes a split apart again.
func texts(s *Split) []string { return strings.Split(string(s.Data()), "\x00")[1:] }

func TestLoad_Folder(t *testing.T) {
	files := map[string]string{
		"a/z.go": long("a/z"), "a.go": long("a"), "B.go": long("B"), "c/d/e.go": long("e"), "f.txt": long("f"),
		"binary": "x\x00y", "copy.go": long("a"), "empty": "", ".hidden": long("h"), ".git/x": long("x"),
		"skip/s.go": long("s"), "a/skip/s.go": long("s"),
	}
	dir := tree(t, files)
	wantLinks := 0
	for link, target := range map[string]string{"loop": ".", "link.go": "a.go", "dangling": "none"} {
		if os.Symlink(target, filepath.Join(dir, link)) == nil {
			wantLinks++
		}
	}
	c, err := Load(dir, Options{SkipDirs: []string{"skip"}})
	if err != nil {
		t.Fatal(err)
	}
	// Byte order of whole paths: B.go, a.go, a/z.go, c/d/e.go, f.txt, of which the period is 5.
	for _, part := range []struct {
		name string
		got  *Split
		want []string
	}{
		{"train", c.Train, []string{long("B"), long("a"), long("e")}},
		{"fit", c.Fit, []string{long("a/z")}},
		{"held-out", c.HeldOut, []string{long("f")}},
	} {
		if diff := cmp.Diff(part.want, texts(part.got)); diff != "" {
			t.Error(part.name, diff)
		}
		if got, want := part.got.Len(), len(strings.Join(part.want, "")); got != want {
			t.Errorf("%s: Len: got %d, want %d", part.name, got, want)
		}
	}
	if want := (Skipped{Binary: 1, Copies: 1, Empty: 1, Links: wantLinks}); c.Skipped != want {
		t.Errorf("skipped: got %+v, want %+v", c.Skipped, want)
	}
	if s := c.String(); !strings.Contains(s, "(3 files)") || !strings.Contains(s, "1 binary") {
		t.Errorf("String: got %q", s)
	}

	again, err := Load(dir, Options{SkipDirs: []string{"skip"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := Load(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if c.ID != again.ID || c.ID == other.ID || len(c.ID) != 2*idBytes {
		t.Errorf("ID: got %s, again %s, other text %s", c.ID, again.ID, other.ID)
	}
}

func TestLoad_FolderThroughLink(t *testing.T) {
	dir := tree(t, map[string]string{"a": long("a"), "b": long("b"), "c": long("c")})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Skip("no symbolic links:", err)
	}
	if _, err := Load(link, Options{}); err != nil {
		t.Error(err)
	}
}

func TestLoad_EveryTwentieth(t *testing.T) {
	files := map[string]string{}
	for i := range 45 {
		files[fmt.Sprintf("%02d", i)] = long(fmt.Sprintf("text%02d", i))
	}
	c, err := Load(tree(t, files), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{files["19"], files["39"]}, texts(c.HeldOut)); diff != "" {
		t.Error("held-out:", diff)
	}
	if diff := cmp.Diff([]string{files["09"], files["29"]}, texts(c.Fit)); diff != "" {
		t.Error("fit:", diff)
	}
	if c.Train.NumFiles() != 41 {
		t.Errorf("train: got %d files, want 41", c.Train.NumFiles())
	}
}

func TestLoad_File(t *testing.T) {
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "line %d é\n", i)
	}
	dir := tree(t, map[string]string{"lines": b.String(), "one line": strings.Repeat("é", 5000)})
	for _, name := range []string{"lines", "one line"} {
		path := filepath.Join(dir, name)
		c, err := Load(path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := texts(c.Train)[0] + texts(c.Fit)[0] + texts(c.HeldOut)[0]; got != string(want) {
			t.Errorf("%s: the parts together differ from the file", name)
		}
		for _, s := range []*Split{c.Train, c.Fit} {
			text := texts(s)[0]
			if name == "lines" && !strings.HasSuffix(text, "\n") {
				t.Errorf("%s: a part ends in %q, want whole lines", name, text[len(text)-5:])
			}
			if !strings.HasSuffix(strings.TrimRight(text, "\n"), "é") {
				t.Errorf("%s: a part ends within a character", name)
			}
		}
		if share := float64(c.HeldOut.Len()) / float64(len(want)); share < 0.0375 || share > 0.0625 {
			t.Errorf("%s: held-out share: got %.4f, want about 0.05", name, share)
		}
	}
	// The same through a folder with one file in it.
	alone := tree(t, map[string]string{"lines": b.String()})
	c, err := Load(alone, Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Load(filepath.Join(alone, "lines"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.Train.Data(), d.Train.Data()) || c.ID != d.ID {
		t.Error("a folder with one file differs from the file")
	}
}

func TestLoad_Limit(t *testing.T) {
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("%02d", i)] = strings.Repeat(fmt.Sprintf("%04d\n", i), 20) // 100 bytes each
	}
	dir := tree(t, files)
	c, err := Load(dir, Options{MaxBytes: 2550})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Train.Len() + c.Fit.Len() + c.HeldOut.Len(); got != 2500 || c.Skipped.OverLimit != 75 {
		t.Errorf("got %d bytes, %+v, want 2500 and 75 files over the limit", got, c.Skipped)
	}
	if first, last := texts(c.Train)[0], texts(c.Train)[c.Train.NumFiles()-1]; first[:4] > "0005" || last[:4] < "0090" {
		t.Errorf("got files %s to %s, want them from all of the order", first[:4], last[:4])
	}
	one := tree(t, map[string]string{"f": strings.Repeat("0123456789\n", 1000)})
	c, err = Load(filepath.Join(one, "f"), Options{MaxBytes: 5000})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Train.Len() + c.Fit.Len() + c.HeldOut.Len(); got != 454*11 {
		t.Errorf("single file: got %d bytes, want %d, whole lines below the limit", got, 454*11)
	}
}

func TestLoad_Refuses(t *testing.T) {
	dir := tree(t, map[string]string{
		"empty": "", "short": "short", "binary": strings.Repeat("x", 3000) + "\x00", "oneline": strings.Repeat("x", 3000),
		"none/.keep": "", "two/a": long("a"), "two/b": long("b"), "blank/a": "", "blank/b": "",
		"tiny/a": "a", "tiny/b": "b", "tiny/c": "c",
	})
	cases := map[string]struct {
		path string
		opts Options
		want string
	}{
		"absent":           {"absent", Options{}, "absent"},
		"empty file":       {"empty", Options{}, "empty text"},
		"short file":       {"short", Options{}, "got 5 bytes of text, want at least 2560"},
		"binary file":      {"binary", Options{}, "byte 0 at offset 3000"},
		"negative limit":   {"oneline", Options{MaxBytes: -1}, "limit: got -1"},
		"limit in a line":  {"oneline", Options{MaxBytes: 2900}, "raise the limit"},
		"empty folder":     {"none", Options{}, "no file in it"},
		"no such ending":   {"two", Options{Ext: ".go"}, "no .go file in it"},
		"two files":        {"two", Options{}, "got 2 text files"},
		"only empty files": {"blank", Options{}, "no text in it: 2 empty"},
		"tiny files":       {"tiny", Options{}, "training split: got 1 bytes in 1 of 3 files, want at least 64"},
		"tiny limit":       {"two", Options{MaxBytes: 10}, "raise it"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, c.path)
			_, err := Load(path, c.opts)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			if !strings.HasPrefix(err.Error(), "text") {
				t.Errorf("got %v, want it to say that it is about the text", err)
			}
		})
	}
	if _, err := Load(filepath.Join(dir, "absent"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: got %v, want ErrNotExist", err)
	}
}

func TestLoad_Unreadable(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("permissions do not bind here")
	}
	dir := tree(t, map[string]string{"a": long("a"), "b": long("b"), "c": long("c"), "d/e": long("e")})
	for _, name := range []string{"b", "d"} {
		path := filepath.Join(dir, name)
		if err := os.Chmod(path, 0); err != nil {
			t.Fatal(err)
		}
		_, err := Load(dir, Options{})
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want a permission error that names %s", err, path)
		}
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDefaultRoot(t *testing.T) {
	root := tree(t, map[string]string{"src/a.go": "package a"})
	nothing := func() string { return "" }
	wrong := func() string { return filepath.Join(root, "none") }
	got, err := defaultRoot(nothing, wrong, func() string { return root })
	if err != nil || got != filepath.Join(root, "src") {
		t.Errorf("got %q (%v), want the third source's src", got, err)
	}
	if _, err := defaultRoot(nothing, wrong); err == nil || !strings.Contains(err.Error(), "-text") {
		t.Errorf("got %v, want an error that names -text", err)
	}
}

func BenchmarkLoad_GoSources(b *testing.B) {
	root, err := DefaultRoot()
	if err != nil {
		b.Skip(err)
	}
	var c *Corpus
	for b.Loop() {
		if c, err = Load(root, GoSources()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(c.Train.Len()+c.Fit.Len()+c.HeldOut.Len()), "bytes")
	b.Log(c)
}
