package graph

import (
	"io"
	"os"
	"path/filepath"

	"github.com/moegraph/moegraph/internal/atomicfile"
)

// EnvPlans names the folder in which plans are kept between runs; none by default, since a layer is planned in
// milliseconds. It is the one environment variable that this package reads.
const EnvPlans = "MOEGRAPH_PLANS"

// Env lists the environment variables with what they do.
func Env() [][2]string {
	return [][2]string{{EnvPlans, "folder of plans, which are kept there between runs; default: none are kept"}}
}

// PlanDir returns the folder of plans, "" for none.
func PlanDir() string { return os.Getenv(EnvPlans) }

// planPath is where a plan of that key is kept.
func planPath(dir, key string) string { return filepath.Join(dir, key[:2], key+".plan") }

// loadPlan returns the kept plan of that key, nil if there is none. What does not read back counts as absent.
func loadPlan(dir, key string) *Plan {
	if dir == "" {
		return nil
	}
	path := planPath(dir, key)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() { // a pipe or a device may have no end
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	p := new(Plan)
	if p.UnmarshalText(text) != nil || p.Key != key {
		return nil
	}
	return p
}

// storePlan keeps a plan: whole or not at all, so that several processes may share the folder. A failure costs the
// next run the planning and nothing else.
func storePlan(dir string, p *Plan) {
	text, err := p.MarshalText()
	path := planPath(dir, p.Key)
	if err != nil || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	_ = atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// keep stores a plan that was made, once it is verified.
func (c *compilation) keep() error {
	if dir := PlanDir(); dir != "" && !c.adopted {
		storePlan(dir, c.prog.Plan())
	}
	return nil
}
