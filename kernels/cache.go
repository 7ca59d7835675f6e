package kernels

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/moegraph/moegraph/graph"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
)

// Module is a kernel loaded on a device.
type Module interface {
	Unload() error
}

// Config says what a Cache works with. Zero limits are the defaults.
type Config struct {
	Compiler Compiler
	Target   Target
	Disk     *Disk    // nil: nothing outlives the process
	Sources  *Sources // default Embedded
	// Load puts an image on the device. It is called by one goroutine at a time.
	Load func(*Image) (Module, error)
	// MaxModules and MaxBytes bound the modules that stay loaded while nothing uses them: together with those
	// in use they are no more than that, unless those in use alone are. Default 1024 and 256 MiB of
	// cubin; a negative limit keeps none.
	MaxModules int
	MaxBytes   int64
}

const (
	defaultModules = 1024
	defaultBytes   = 256 << 20
)

// Cache holds the modules loaded on one device, the least recently used going first. A module that a Set holds is
// pinned: it stays loaded whatever the limits say.
type Cache struct {
	cfg Config

	mu      sync.Mutex
	entries map[string]*entry              // by key: all that are loaded or being made
	idle    *simplelru.LRU[string, *entry] // those that no Set holds
	bytes   int64                          // of cubins, of all that are loaded
	loaded  int                            // modules
	stats   Stats
}

// Stats counts what a Cache did.
type Stats struct {
	Compiled int // by the compiler
	FromDisk int
	Reused   int // were loaded already
	Unloaded int
	Loaded   int   // modules that are loaded now
	Pinned   int   // of these, in use
	Bytes    int64 // of their cubins
}

// entry is one key. pins counts the Sets that hold it or wait for it; image and module are set once ready is closed.
type entry struct {
	key    string
	pins   int
	ready  chan struct{}
	image  *Image
	module Module
	err    error
}

// images makes compiles of one key by several devices one compile.
var images singleflight.Group

// NewCache returns an empty Cache.
func NewCache(cfg Config) *Cache {
	if cfg.MaxModules == 0 {
		cfg.MaxModules = defaultModules
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = defaultBytes
	}
	if cfg.Sources == nil {
		cfg.Sources = Embedded()
	}
	c := &Cache{cfg: cfg, entries: map[string]*entry{}}
	// The list's own bound never binds: trim counts the pinned modules as well.
	idle, err := simplelru.NewLRU[string, *entry](1<<30, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	c.idle = idle
	return c
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Loaded, s.Bytes, s.Pinned = c.loaded, c.bytes, len(c.entries)-c.idle.Len()
	return s
}

// Set are the loaded kernels of one Exec. They stay loaded until Close.
type Set struct {
	c  *Cache
	by map[graph.Kernel]*entry
}

// Acquire loads the kernels, which may repeat: from the modules that are loaded, from the disk, or compiled, as many at
// once as there are cores. progress, if not nil, is called after each with how many of all are ready.
func (c *Cache) Acquire(ks []graph.Kernel, progress func(done, all int)) (*Set, error) {
	s := &Set{c: c, by: map[graph.Kernel]*entry{}}
	var order []graph.Kernel
	units := map[graph.Kernel]unit{}
	for _, k := range ks {
		if _, ok := units[k]; ok {
			continue
		}
		u, err := newUnit(k, c.cfg.Sources, c.cfg.Target, c.cfg.Compiler.Version())
		if err != nil {
			return nil, err
		}
		units[k] = u
		order = append(order, k)
	}
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	var mu sync.Mutex
	done := 0
	for _, k := range order {
		group.Go(func() error {
			e, err := c.pin(units[k])
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			s.by[k] = e
			if done++; progress != nil {
				progress(done, len(order))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Module returns the loaded kernel; it must be one that Acquire was asked for.
func (s *Set) Module(k graph.Kernel) (Module, *Image, error) {
	e := s.by[k]
	if e == nil {
		return nil, nil, kernelError(k, "is not among the %d kernels of its program", len(s.by))
	}
	return e.module, e.image, nil
}

// Images returns the compiled kernels by Kernel.
func (s *Set) Images() map[graph.Kernel]*Image {
	out := make(map[graph.Kernel]*Image, len(s.by))
	for k, e := range s.by {
		out[k] = e.image
	}
	return out
}

// Close lets go of the kernels. A second Close does nothing.
func (s *Set) Close() error {
	var errs error
	for _, e := range s.by {
		errs = errors.Join(errs, s.c.unpin(e))
	}
	s.by = nil
	return errs
}

// pin returns the entry of a key, loaded and pinned. The first to ask makes it, the others wait.
func (c *Cache) pin(u unit) (*entry, error) {
	c.mu.Lock()
	e := c.entries[u.key]
	if e != nil {
		c.idle.Remove(u.key)
		e.pins++
		c.stats.Reused++
		c.mu.Unlock()
		<-e.ready
		return e, e.err
	}
	e = &entry{key: u.key, pins: 1, ready: make(chan struct{})}
	c.entries[u.key] = e
	c.mu.Unlock()

	defer close(e.ready)
	img, how, err := c.makeImage(u)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = c.load(e, img)
	}
	if err != nil {
		e.err = err
		delete(c.entries, u.key) // the next to ask tries again
		return nil, err
	}
	if how == fromDisk {
		c.stats.FromDisk++
	} else {
		c.stats.Compiled++
	}
	_ = c.trim() // a module that does not unload is another kernel's trouble; this one is ready
	return e, nil
}

type origin int

const (
	compiled origin = iota
	fromDisk
)

// makeImage reads the image from the disk or compiles it.
func (c *Cache) makeImage(u unit) (*Image, origin, error) {
	type result struct {
		img *Image
		how origin
	}
	r, err, _ := images.Do(c.cfg.Disk.Dir()+"|"+u.key, func() (any, error) {
		if img := c.cfg.Disk.load(u.key); img != nil {
			return result{img, fromDisk}, nil
		}
		img, err := u.compile(c.cfg.Compiler, c.cfg.Sources, c.cfg.Target)
		if err != nil {
			return nil, err
		}
		c.cfg.Disk.store(img)
		return result{img, compiled}, nil
	})
	if err != nil {
		return nil, 0, err
	}
	x := r.(result)
	return x.img, x.how, nil
}

// load puts the image on the device. The caller holds the lock.
func (c *Cache) load(e *entry, img *Image) error {
	m, err := c.cfg.Load(img)
	if err != nil {
		return fmt.Errorf("kernel %q for %s: %w", img.Name, img.Target, err)
	}
	e.image, e.module = img, m
	c.loaded++
	c.bytes += int64(len(img.Cubin))
	return nil
}

// unpin takes one hold back.
func (c *Cache) unpin(e *entry) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.pins--; e.pins == 0 {
		c.idle.Add(e.key, e)
	}
	return c.trim()
}

// trim unloads idle modules, the least recently used first, until the limits hold. The caller holds the lock.
func (c *Cache) trim() error {
	var errs error
	for c.idle.Len() > 0 && (c.loaded > c.cfg.MaxModules || c.bytes > c.cfg.MaxBytes) {
		_, e, _ := c.idle.RemoveOldest()
		delete(c.entries, e.key)
		c.loaded--
		c.bytes -= int64(len(e.image.Cubin))
		c.stats.Unloaded++
		if err := e.module.Unload(); err != nil {
			errs = errors.Join(errs, fmt.Errorf("kernel %q: %w", e.image.Name, err))
		}
	}
	return errs
}

// Purge unloads every module that nothing holds.
func (c *Cache) Purge() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	modules, bytes := c.cfg.MaxModules, c.cfg.MaxBytes
	c.cfg.MaxModules, c.cfg.MaxBytes = -1, -1
	err := c.trim()
	c.cfg.MaxModules, c.cfg.MaxBytes = modules, bytes
	return err
}
