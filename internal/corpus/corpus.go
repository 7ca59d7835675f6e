package corpus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Options choose what Load reads. The zero value: every text file, all of it.
type Options struct {
	// MaxBytes bounds the text read, in bytes; 0 is no bound. Of a folder, files spread evenly over
	// the order are left out as a whole until the rest fits; a single file is cut at a line end.
	MaxBytes int64
	// Ext is the ending that a file's name must have; "" is any.
	Ext string
	// SkipDirs are names of folders to leave out, at any depth.
	SkipDirs []string
}

// GoSources are the options for a tree of Go sources: .go files, without testdata and vendor.
func GoSources() Options {
	return Options{Ext: ".go", SkipDirs: []string{"testdata", "vendor"}}
}

// Skipped counts what Load left out.
type Skipped struct {
	Binary    int // holds a byte 0
	Links     int // symbolic links, and devices and pipes
	Copies    int // same bytes as a file before it
	Empty     int
	OverLimit int // would not fit MaxBytes
}

func (s Skipped) String() string {
	var parts []string
	for _, part := range []struct {
		count int
		what  string
	}{
		{s.Binary, "binary"}, {s.Links, "links"}, {s.Copies, "copies"}, {s.Empty, "empty"},
		{s.OverLimit, "over the limit"},
	} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.what))
		}
	}
	return strings.Join(parts, ", ")
}

// Corpus is a text in three splits.
type Corpus struct {
	Path    string // as given to Load, made absolute
	Train   *Split
	Fit     *Split // for fitting what is not trained, such as interpolation weights
	HeldOut *Split
	Skipped Skipped
	// ID is a hash of the text and its order, in hex: equal IDs mean equal splits. A run to be
	// resumed compares it.
	ID string
}

// String is one line for a person.
func (c *Corpus) String() string {
	s := fmt.Sprintf("%s: %.1f MB to train on (%d files), %.1f MB to fit (%d), %.1f MB held out (%d)", c.Path,
		float64(c.Train.Len())/1e6, c.Train.NumFiles(), float64(c.Fit.Len())/1e6, c.Fit.NumFiles(),
		float64(c.HeldOut.Len())/1e6, c.HeldOut.NumFiles())
	if c.Skipped != (Skipped{}) {
		s += "; left out: " + c.Skipped.String()
	}
	return s
}

// DefaultRoot finds the Go sources of this machine, for when the user names no text.
func DefaultRoot() (string, error) {
	return defaultRoot(runtimeRoot, goEnvRoot)
}

func defaultRoot(sources ...func() string) (string, error) {
	for _, source := range sources {
		root := source()
		if root == "" {
			continue
		}
		src := filepath.Join(root, "src")
		if info, err := os.Stat(src); err == nil && info.IsDir() {
			return src, nil
		}
	}
	return "", errors.New("text: got no Go sources (neither GOROOT nor `go env GOROOT` leads to a folder " +
		"with src): install Go, or name a text by -text FILE-or-DIR")
}

// runtimeRoot is where this program was built, or what the user set.
func runtimeRoot() string {
	//lint:ignore SA1019 the go command, which should be asked instead, may not be installed; it comes next
	return runtime.GOROOT()
}

func goEnvRoot() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Load reads a file or folder and splits it.
func Load(path string, opts Options) (*Corpus, error) {
	if opts.MaxBytes < 0 {
		return nil, fmt.Errorf("text: limit: got %d bytes, want 0 (none) or more", opts.MaxBytes)
	}
	// The root may be a link, to a file or a folder; links below it are left out.
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("text %q: %w", path, err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("text %q: %w", path, err)
	}
	c := &Corpus{Path: path}
	if abs, err := filepath.Abs(path); err == nil {
		c.Path = abs
	}
	switch {
	case info.IsDir():
		err = c.loadDir(root, opts)
	case info.Mode().IsRegular():
		err = c.loadFile(root, info.Size(), opts)
	default:
		err = errors.New("got a device or pipe, want a file or a folder")
	}
	if err != nil {
		return nil, fmt.Errorf("text %q: %w", path, err)
	}
	return c, nil
}

func (c *Corpus) loadFile(path string, size int64, opts Options) error {
	wanted := int64(math.MaxInt64)
	if opts.MaxBytes > 0 {
		wanted = opts.MaxBytes
	}
	if min(size, wanted) > math.MaxInt-readAhead {
		return fmt.Errorf("got %d bytes, more than can be addressed: set a limit", size)
	}
	arena := make([]byte, 1, 1+min(size, wanted)+readAhead) // begins with fileStart
	arena, err := appendFile(arena, path, wanted)
	if err != nil {
		return err
	}
	if at := bytes.IndexByte(arena[1:], fileStart); at >= 0 {
		return fmt.Errorf("got a byte 0 at offset %d, want text", at)
	}
	if int64(len(arena)-1) == wanted { // perhaps cut within a line
		arena = arena[:bytes.LastIndexByte(arena, '\n')+1]
		if len(arena) == 0 {
			return fmt.Errorf("got no line end in the first %d bytes: raise the limit", wanted)
		}
	}
	return c.splitOne(arena)
}

func (c *Corpus) loadDir(root string, opts Options) error {
	files, err := c.list(root, opts)
	if err != nil {
		return err
	}
	var total int64
	for _, f := range files {
		total += f.bytes + 1
	}
	if total > math.MaxInt-readAhead {
		return fmt.Errorf("got %d bytes, more than can be addressed: set a limit", total)
	}
	arena := make([]byte, 0, total+readAhead)
	seen := map[[sha256.Size]byte]bool{}
	hash := sha256.New()
	var starts []int // of the fileStart bytes in arena
	for _, f := range files {
		start := len(arena)
		arena, err = appendFile(append(arena, fileStart), f.path, math.MaxInt64)
		if err != nil {
			return err
		}
		text := arena[start+1:]
		sum := sha256.Sum256(text)
		switch {
		case len(text) == 0:
			c.Skipped.Empty++
		case bytes.IndexByte(text, fileStart) >= 0:
			c.Skipped.Binary++
		case seen[sum]:
			c.Skipped.Copies++
		default:
			seen[sum] = true
			hash.Write(sum[:])
			starts = append(starts, start)
			continue
		}
		arena = arena[:start]
	}
	c.ID = hex.EncodeToString(hash.Sum(nil)[:idBytes])
	return c.splitFiles(arena, starts)
}

// idBytes of a SHA-256 are enough to tell two texts apart.
const idBytes = 16

// readAhead leaves room at the end of the arena, so that the last file's end is seen by a read into
// free space; a file that grew since it was listed makes the arena grow.
const readAhead = 512

// appendFile reads a file, at most maxBytes of it, behind arena.
func appendFile(arena []byte, path string, maxBytes int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := io.LimitReader(f, maxBytes)
	for {
		if len(arena) == cap(arena) {
			arena = slices.Grow(arena, readAhead)
		}
		n, err := r.Read(arena[len(arena):cap(arena)])
		arena = arena[:len(arena)+n]
		if err == io.EOF {
			return arena, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
