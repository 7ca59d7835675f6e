package graph

import (
	"errors"
	"slices"
	"sync"
)

// issued are the runners whose replays on the same variables may still be running, where replays are only issued:
// the last that updates variables and those that read them since. The device keeps their order; nobody waits
// on the host, and one Exec alone has nobody to follow.
type issued struct {
	mu      sync.Mutex
	writer  AsyncRunner
	readers []AsyncRunner // each has followed writer
}

// order makes the next replay of r come after those that it may not overtake.
func (s *issued) order(r AsyncRunner, writes bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !writes && slices.Contains(s.readers, r) {
		return nil
	}
	if s.writer != nil && s.writer != r {
		if err := r.Follow(s.writer); err != nil {
			return err
		}
	}
	if !writes {
		s.readers = append(s.readers, r)
		return nil
	}
	for _, other := range s.readers {
		if other == r {
			continue
		}
		if err := r.Follow(other); err != nil {
			return err
		}
	}
	s.writer, s.readers = r, s.readers[:0]
	return nil
}

// settle waits until nothing issued updates variables and, before they are written, until nothing reads them.
func (s *issued) settle(readers bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs error
	if s.writer != nil {
		errs = s.writer.Wait()
	}
	if readers {
		for _, r := range s.readers {
			errs = errors.Join(errs, r.Wait())
		}
	}
	return errs
}

// forget removes a runner whose work is done.
func (s *issued) forget(r AsyncRunner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == r {
		s.writer = nil
	}
	s.readers = slices.DeleteFunc(s.readers, func(other AsyncRunner) bool { return other == r })
}
