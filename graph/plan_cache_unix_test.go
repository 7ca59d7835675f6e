//go:build unix

package graph_test

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/moegraph/moegraph/graph"
)

// TestPlan_CachePipe: where the folder of plans has something that is no file, the graph is planned all the same.
func TestPlan_CachePipe(t *testing.T) {
	g, _ := wide(4, 100)
	p := compile(t, g, graph.Options{})
	dir := t.TempDir()
	path := filepath.Join(dir, p.PlanKey()[:2], p.PlanKey()+".plan")
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	t.Setenv(graph.EnvPlans, dir)
	if !bytes.Equal(text(t, compile(t, g, graph.Options{}).Plan()), text(t, p.Plan())) {
		t.Error("another plan")
	}
}
