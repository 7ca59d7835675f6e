package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"sort"
	"sync"
)

//go:embed cuda
var embedded embed.FS

// Sources are CUDA C++ files by name, as #include finds them.
type Sources struct {
	names []string // sorted
	texts map[string]string
	hash  string
}

// NewSources returns the files of the map.
func NewSources(texts map[string]string) *Sources {
	s := &Sources{texts: texts}
	for name := range texts {
		s.names = append(s.names, name)
	}
	sort.Strings(s.names)
	h := sha256.New()
	for _, name := range s.names {
		fmt.Fprintf(h, "%d %s %d\n%s", len(name), name, len(texts[name]), texts[name])
	}
	s.hash = hex.EncodeToString(h.Sum(nil))
	return s
}

// Embedded returns the sources that the program carries.
var Embedded = sync.OnceValue(func() *Sources {
	texts := map[string]string{}
	dir, err := fs.Sub(embedded, "cuda")
	if err == nil {
		err = fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := fs.ReadFile(dir, path)
			texts[path] = string(b)
			return err
		})
	}
	if err != nil {
		panic(fmt.Sprintf("kernels: embedded sources: %v", err)) // the compiler of this package put them there
	}
	return NewSources(texts)
})

// Names returns the files' names, sorted.
func (s *Sources) Names() []string { return append([]string(nil), s.names...) }

// Text returns a file's contents.
func (s *Sources) Text(name string) (string, bool) {
	t, ok := s.texts[name]
	return t, ok
}
