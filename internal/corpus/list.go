package corpus

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// listed is a file found in a folder.
type listed struct {
	path  string // to open it
	name  string // below the root, with slashes: the order
	bytes int64
}

// list walks root and returns the files to read, in order.
func (c *Corpus) list(root string, opts Options) ([]listed, error) {
	var files []listed
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err // names the path
		}
		if path == root {
			return nil
		}
		hidden := strings.HasPrefix(d.Name(), ".")
		switch {
		case d.IsDir() && (hidden || slices.Contains(opts.SkipDirs, d.Name())):
			return fs.SkipDir
		case d.IsDir() || hidden || !strings.HasSuffix(d.Name(), opts.Ext):
			return nil
		case !d.Type().IsRegular():
			c.Skipped.Links++
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, listed{path, filepath.ToSlash(rel), info.Size()})
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, noFiles(opts)
	}
	// The walk goes folder by folder: it would put a/b before a.go, bytes put it behind.
	slices.SortFunc(files, func(a, b listed) int { return cmp.Compare(a.name, b.name) })
	kept := limit(files, opts.MaxBytes)
	c.Skipped.OverLimit = len(files) - len(kept)
	if len(kept) == 0 {
		return nil, fmt.Errorf("got a limit of %d bytes, less than the files hold: raise it", opts.MaxBytes)
	}
	return kept, nil
}

func noFiles(opts Options) error {
	if opts.Ext != "" {
		return fmt.Errorf("got no %s file in it", opts.Ext)
	}
	return errors.New("got no file in it")
}

// limit keeps files of at most maxBytes in all, spread evenly: at each place the bytes kept are at
// most maxBytes times the share of bytes passed.
func limit(files []listed, maxBytes int64) []listed {
	var total int64
	for _, f := range files {
		total += f.bytes
	}
	if maxBytes == 0 || total <= maxBytes {
		return files
	}
	var kept []listed
	var passedBytes, keptBytes int64
	for _, f := range files {
		passedBytes += f.bytes
		if float64(keptBytes+f.bytes) <= float64(maxBytes)*float64(passedBytes)/float64(total) {
			kept = append(kept, f)
			keptBytes += f.bytes
		}
	}
	return kept
}
