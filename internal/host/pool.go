package host

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/moegraph/moegraph/graph"
)

// pool is the goroutines, one a core, that run pieces of loops. The goroutine that starts a loop takes part
// in it, so a loop always makes progress, whoever else is busy.
type pool struct {
	work    chan *loop
	helpers int
	workers chan *graph.Worker // those that loops' starters used before
}

var shared = sync.OnceValue(func() *pool {
	p := &pool{helpers: runtime.GOMAXPROCS(0) - 1}
	p.work = make(chan *loop, 4*max(1, p.helpers))
	p.workers = make(chan *graph.Worker, 64)
	for range p.helpers {
		go p.help()
	}
	return p
})

func (p *pool) help() {
	w := new(graph.Worker)
	for l := range p.work {
		l.pieces(w)
	}
}

// worker returns buffers for the goroutine that starts a loop; giveBack keeps them for the next.
func (p *pool) worker() *graph.Worker {
	select {
	case w := <-p.workers:
		return w
	default:
		return new(graph.Worker)
	}
}

func (p *pool) giveBack(w *graph.Worker) {
	select {
	case p.workers <- w:
	default:
	}
}

// loop is a parallel loop that runs again and again. Its state packs a generation, the number of pieces and the
// next piece into one word, so that a helper that comes late can never take a piece twice or one of
// a run that is over.
type loop struct {
	pool  *pool
	body  func(w *graph.Worker, lo, hi int)
	n     int // fixed while pieces of the present run are out
	grain int
	state atomic.Uint64 // generation (24 bits), pieces (20 bits), next piece (20 bits)
	done  atomic.Int64
	fin   chan struct{}
	fault atomic.Pointer[fault]
}

type fault struct{ value any }

const (
	pieceBits = 20
	maxPieces = 1<<pieceBits - 1
	pieceMask = 1<<pieceBits - 1
)

func (p *pool) newLoop(body func(w *graph.Worker, lo, hi int)) graph.Loop {
	return &loop{pool: p, body: body, fin: make(chan struct{}, 1)}
}

// Run implements graph.Loop.
func (l *loop) Run(n, grain int) {
	if n <= 0 {
		return
	}
	grain = max(grain, 1, (n+maxPieces-1)/maxPieces)
	count := (n + grain - 1) / grain
	w := l.pool.worker()
	defer l.pool.giveBack(w)
	if count == 1 || l.pool.helpers == 0 {
		for lo := 0; lo < n; lo += grain {
			l.body(w, lo, min(n, lo+grain))
		}
		return
	}
	l.n, l.grain = n, grain
	l.done.Store(0)
	gen := l.state.Load()>>(2*pieceBits) + 1
	l.state.Store(gen<<(2*pieceBits) | uint64(count)<<pieceBits)
	for range min(count-1, l.pool.helpers) {
		select {
		case l.pool.work <- l:
		default: // everybody has enough to do
		}
	}
	l.pieces(w)
	<-l.fin
	if f := l.fault.Swap(nil); f != nil {
		panic(f.value)
	}
}

// pieces takes pieces until none is left.
func (l *loop) pieces(w *graph.Worker) {
	for {
		s := l.state.Load()
		next, count := s&pieceMask, s>>pieceBits&pieceMask
		if next >= count {
			return
		}
		if !l.state.CompareAndSwap(s, s+1) {
			continue
		}
		l.piece(w, int(next))
		if l.done.Add(1) == int64(count) {
			l.fin <- struct{}{}
		}
	}
}

// piece runs one piece; a panic in it is handed to the goroutine that started the loop.
func (l *loop) piece(w *graph.Worker, i int) {
	defer func() {
		if r := recover(); r != nil {
			l.fault.CompareAndSwap(nil, &fault{r})
		}
	}()
	lo := i * l.grain
	l.body(w, lo, min(l.n, lo+l.grain))
}
