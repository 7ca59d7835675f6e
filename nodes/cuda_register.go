//go:build gpu

package nodes

import _ "github.com/moegraph/moegraph/internal/cudadev" // registers the devices cuda:N
