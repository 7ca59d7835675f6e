//go:build openblas

package host

/*
#cgo LDFLAGS: -lopenblas
void openblas_set_num_threads(int n);
*/
import "C"

import (
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/netlib/blas/netlib"
)

// With the build tag openblas, matrix products of float32 go to OpenBLAS through gonum's netlib. One thread each: the
// host device's own goroutines are the parallelism.
func init() {
	C.openblas_set_num_threads(1)
	blas32.Use(netlib.Implementation{})
}
