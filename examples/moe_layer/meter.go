package main

import (
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// meter shows progress: a bar on a terminal, elsewhere a line now and then.
type meter struct {
	w       io.Writer
	cfg     config
	bar     *progressbar.ProgressBar // nil where w is no terminal
	start   time.Time
	first   int
	done    int
	loss    float64 // a moving mean, bits per byte
	printed time.Time
}

// lineEvery is the time between lines where there is no terminal.
const lineEvery = 5 * time.Second

func newMeter(w io.Writer, cfg config, first int) *meter {
	m := &meter{w: w, cfg: cfg, start: time.Now(), printed: time.Now(), first: first, done: first}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		m.bar = progressbar.NewOptions(cfg.Steps, progressbar.OptionSetWriter(w), progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionFullWidth(),
			progressbar.OptionClearOnFinish())
		_ = m.bar.Set(first)
	}
	return m
}

// step takes in one step's loss in bits per byte.
func (m *meter) step(loss float64, history []point) {
	if m.done == m.first {
		m.loss = loss
	}
	m.loss += 0.05 * (loss - m.loss)
	m.done++
	text := fmt.Sprintf("loss %.3f bits/byte, %s bytes/s", m.loss, count(int(rate((m.done-m.first)*m.cfg.Batch, m.start))))
	if len(history) > 0 {
		load := history[len(history)-1].Load
		text += fmt.Sprintf(", experts %.0f-%.0f %%", 100*slices.Min(load), 100*slices.Max(load))
	}
	if m.bar != nil {
		m.bar.Describe(text)
		_ = m.bar.Add(1)
	} else if time.Since(m.printed) >= lineEvery {
		m.printed = time.Now()
		fmt.Fprintf(m.w, "step %d of %d: %s\n", m.done, m.cfg.Steps, text)
	}
}

func (m *meter) finish() {
	if m.bar != nil {
		_ = m.bar.Finish()
	}
	fmt.Fprintf(m.w, "trained %d steps in %.1f s, %s bytes/s, last loss %.3f bits/byte\n", m.done-m.first, time.Since(m.start).Seconds(),
		count(int(rate((m.done-m.first)*m.cfg.Batch, m.start))), m.loss)
}

func sorted(keys iter.Seq[string]) []string { return slices.Sorted(keys) }
