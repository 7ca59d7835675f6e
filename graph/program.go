package graph

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/moegraph/moegraph/memory"
)

// Program is a compiled graph: steps on streams with waits, and a place in memory for every workspace. It
// is immutable and may be shared by goroutines.
type Program struct {
	graph      string
	g          *Graph // what it was compiled from
	dev        Device
	opt        Options
	steps      []*Step
	streams    int
	makespanUS float64
	how        string   // the steps were scheduled
	control    [][2]int // edges added to save memory, between steps as built
	key        string   // of the plan
	built      []*Step  // as they were before scheduling
	profile    Profile  // that it was planned with
	buffers    []Placed
	accesses   [][]int // of each buffer, the maker first
	external   []*Value
	plan       *memory.Plan
	inputs     []*Value
	outputs    []output
	equal      [][2]*Value
	fused      []string
}

// Name returns the graph's name.
func (p *Program) Name() string { return p.graph }

// Device returns the device that the Program was compiled for.
func (p *Program) Device() Device { return p.dev }

// Options returns what the Program was compiled with.
func (p *Program) Options() Options { return p.opt }

// Steps returns the steps in the order of issue.
func (p *Program) Steps() []*Step { return append([]*Step(nil), p.steps...) }

// Streams returns the number of streams in use.
func (p *Program) Streams() int { return p.streams }

// SimulatedUS returns the time of a replay in the cost model, in microseconds.
func (p *Program) SimulatedUS() float64 { return p.makespanUS }

// Workspaces returns the arena's buffers.
func (p *Program) Workspaces() []Placed { return append([]Placed(nil), p.buffers...) }

// Fused lists the fusions that were made, as "producer into reader".
func (p *Program) Fused() []string { return append([]string(nil), p.fused...) }

// ArenaBytes returns the bytes of the workspaces' arena: the plan's peak.
func (p *Program) ArenaBytes() int64 { return p.plan.Peak }

// LowerBound returns the bytes below which no placement of the workspaces can come on these streams.
func (p *Program) LowerBound() int64 { return p.plan.LowerBound }

// Inputs returns the graph's inputs in the order of building.
func (p *Program) Inputs() []*Value { return append([]*Value(nil), p.inputs...) }

// Output returns the output of that name, nil if there is none.
func (p *Program) Output(name string) *Value {
	for _, o := range p.outputs {
		if o.name == name {
			return o.v
		}
	}
	return nil
}

// Outputs returns the names of the outputs in the order of marking.
func (p *Program) Outputs() []string {
	names := make([]string, len(p.outputs))
	for i, o := range p.outputs {
		names[i] = o.name
	}
	return names
}

// bytes returns what an Exec takes with the variables that it uses: workspaces, outputs and variables.
func (p *Program) bytes() int64 {
	sum := p.plan.Peak
	seen := map[*Value]bool{}
	for _, s := range p.steps {
		for _, v := range s.In {
			if v != nil && v.variable != nil && !seen[v] {
				seen[v] = true
				sum += v.Bytes()
			}
		}
	}
	for _, v := range p.external {
		sum += v.Bytes()
	}
	return sum
}

// WorkspaceSum returns what the workspaces would take without sharing bytes.
func (p *Program) WorkspaceSum() int64 {
	var sum int64
	for _, b := range p.buffers {
		sum += (b.Size + arenaAlign - 1) / arenaAlign * arenaAlign
	}
	return sum
}

// String returns the plan as a table: a line for each output of each step.
func (p *Program) String() string {
	var b strings.Builder
	where := p.places()
	fmt.Fprintf(&b, "program %q on %s: %d steps, %s, simulated %.0f us\n", p.graph, p.dev, len(p.steps), plural(p.streams, "stream"), p.makespanUS)
	if len(p.control) > 0 {
		fmt.Fprintf(&b, "%s added to save memory\n", plural(len(p.control), "edge"))
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tstream\twaits\tnode\top\toutput\toffset\tbytes\tMFLOP")
	for i, s := range p.steps {
		flops := fmt.Sprintf("%.2f", float64(s.Cost.Flops)/1e6)
		head := fmt.Sprintf("%d\t%d\t%s\t%s\t%s", i, s.Stream, ints(s.Waits), s.Name, s.Op.Kind())
		lines := 0
		for k, v := range s.Out {
			if v == nil {
				continue
			}
			fmt.Fprintf(w, "%s\t%s %s\t%s\t%s\t%s\n", head, s.Op.Outputs()[k], v.Text(), where[v], size(v.Bytes()), flops)
			head, flops = "\t\t\t\t", ""
			lines++
		}
		if lines == 0 {
			fmt.Fprintf(w, "%s\t%s\t\t\t%s\n", head, s.updated(), flops)
			head, flops = "\t\t\t\t", ""
		}
		if s.scratch > 0 {
			fmt.Fprintf(w, "%s\tscratch\t%s\t%s\t%s\n", head, where[s], size(s.scratch), flops)
		}
	}
	w.Flush()
	for _, f := range p.fused {
		fmt.Fprintf(&b, "fused %s\n", f)
	}
	fmt.Fprintf(&b, "workspaces: peak %s, lower bound %s, without sharing %s\n",
		size(p.plan.Peak), size(p.plan.LowerBound), size(p.WorkspaceSum()))
	if names := p.pinned(); len(names) > 0 {
		fmt.Fprintf(&b, "the peak is pinned by %s\n", strings.Join(names, ", "))
	}
	return b.String()
}

// places says where each value, and the scratch of each step, lies.
func (p *Program) places() map[any]string {
	where := map[any]string{}
	for _, x := range p.buffers {
		if x.value != nil {
			where[x.value] = fmt.Sprintf("%d", x.Offset)
			if x.over >= 0 {
				where[x.value] += " in place"
			}
		} else {
			where[p.steps[x.step]] = fmt.Sprintf("%d", x.Offset)
		}
	}
	for _, v := range p.external {
		where[v] = "output"
	}
	return where
}

// updated names the variables that the step rewrites.
func (s *Step) updated() string {
	var names []string
	for i, o := range s.Op.Operands() {
		if o.Update && s.In[i] != nil {
			names = append(names, s.In[i].Name())
		}
	}
	return "updates " + strings.Join(names, ", ")
}

// pinned names the workspaces that need the peak, at most eight.
func (p *Program) pinned() []string {
	var names []string
	for _, i := range p.plan.Pinned {
		if len(names) == 8 {
			return append(names, fmt.Sprintf("and %d more", len(p.plan.Pinned)-8))
		}
		names = append(names, p.buffers[i].Name)
	}
	return names
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func ints(xs []int) string {
	if len(xs) == 0 {
		return "-"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(xs), " ", ","), "[]")
}

func size(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
	return fmt.Sprintf("%d B", bytes)
}
