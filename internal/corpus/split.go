package corpus

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"unicode/utf8"
)

const (
	// fileStart stands before each file's text.
	fileStart = 0
	// maxPeriod: one file in this many goes to each of the small splits.
	maxPeriod = 20
	// minSplitBytes is the least text in a split. It only keeps the numbers from being void.
	minSplitBytes = 64
	// minOneFileBytes is what a single file needs: the smallest part is 5 % less two windows for line
	// ends, 1/40 in all.
	minOneFileBytes = 40 * minSplitBytes
)

// Split is a part of the text; see the package comment for its layout.
type Split struct {
	data     []byte
	numFiles int
}

// NewSplit makes a split of texts, one after another; a text with a byte 0 in it is an error.
func NewSplit(texts ...[]byte) (*Split, error) {
	s := &Split{}
	for i, text := range texts {
		if at := bytes.IndexByte(text, fileStart); at >= 0 {
			return nil, fmt.Errorf("split: text %d: got a byte 0 at offset %d, want text", i, at)
		}
		s.add(text)
	}
	return s, nil
}

func (s *Split) add(text []byte) {
	s.data = append(append(s.data, fileStart), text...)
	s.numFiles++
}

// Data is the split's bytes, a byte 0 before each file. It must not be written to.
func (s *Split) Data() []byte { return s.data }

// Len is the number of text bytes.
func (s *Split) Len() int { return len(s.data) - s.numFiles }

// NumFiles is the number of files.
func (s *Split) NumFiles() int { return s.numFiles }

// splitFiles deals the files of arena, which begin at starts, out to the splits. The training files
// close up in arena itself, so that the text is held once.
func (c *Corpus) splitFiles(arena []byte, starts []int) error {
	switch len(starts) {
	case 0:
		return fmt.Errorf("got no text in it: %s", c.Skipped)
	case 1:
		return c.splitOne(arena[starts[0]:])
	case 2:
		return fmt.Errorf("got 2 text files, want at least 3, one for each split (or a single one, which is cut " +
			"into parts): join them")
	}
	period := min(len(starts), maxPeriod)
	train := arena[:0]
	c.Train, c.Fit, c.HeldOut = &Split{}, &Split{}, &Split{}
	for i, start := range starts {
		end := len(arena)
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		switch i % period {
		case period - 1:
			c.HeldOut.add(arena[start+1 : end])
		case (period - 1) / 2:
			c.Fit.add(arena[start+1 : end])
		default:
			train = append(train, arena[start:end]...) // moves to the front, within arena
			c.Train.numFiles++
		}
	}
	c.Train.data = slices.Clip(train)
	for _, split := range []struct {
		name string
		s    *Split
	}{{"training", c.Train}, {"fit", c.Fit}, {"held-out", c.HeldOut}} {
		if split.s.Len() < minSplitBytes {
			return fmt.Errorf("%s split: got %d bytes in %d of %d files, want at least %d: give longer files, or "+
				"more", split.name, split.s.Len(), split.s.numFiles, len(starts), minSplitBytes)
		}
	}
	return nil
}

// splitOne cuts a single file, a fileStart and its text, into contiguous parts. The training part
// stays where it is.
func (c *Corpus) splitOne(arena []byte) error {
	text := arena[1:]
	if len(text) == 0 {
		return fmt.Errorf("got an empty text, want at least %d bytes", minOneFileBytes)
	}
	if len(text) < minOneFileBytes {
		return fmt.Errorf("got %d bytes of text, want at least %d to split", len(text), minOneFileBytes)
	}
	sum := sha256.Sum256(text)
	c.ID = hex.EncodeToString(sum[:idBytes])
	n := len(text)
	first := cutNear(text, n-n/10, n/80)
	second := cutNear(text, n-n/20, n/80)
	c.Train = &Split{slices.Clip(arena[:1+first]), 1}
	c.Fit, c.HeldOut = &Split{}, &Split{}
	c.Fit.add(text[first:second])
	c.HeldOut.add(text[second:])
	return nil
}

// cutNear is the line start nearest to at within window bytes, or where there is none (a text of one
// long line) at, moved to the start of a UTF-8 sequence.
func cutNear(text []byte, at, window int) int {
	for d := range window {
		for _, i := range []int{at - d, at + d} {
			if text[i-1] == '\n' {
				return i
			}
		}
	}
	for range utf8.UTFMax {
		if utf8.RuneStart(text[at]) {
			return at
		}
		at--
	}
	return at
}
