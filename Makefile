# moegraph: see README.md. `make` builds, `make test` tests, `make lint` checks, `make bench` measures.

.PHONY: build test race lint cross bench run clean gpu gpu-test gpu-lint compile-all gpu-bundle cuda-headers

build:
	go build ./...
	go build -o bin/ ./cmd/moegraph ./examples/moe_layer

test:
	go test ./...

# The packages in which goroutines meet.
race:
	go test -race ./graph ./internal/host ./memory
	go test -race -short ./gorgop

lint:
	test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	go vet ./...
	go vet -tags openblas ./internal/host
	go tool staticcheck ./...

# Every system we claim to build for.
cross:
	GOOS=darwin GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...
	GOOS=linux GOARCH=arm64 go vet ./...

bench:
	go test -run '^$$' -bench . -benchmem ./graph ./nodes ./internal/gemm ./dtype ./memory ./gorgop

run:
	go run ./examples/moe_layer

# CUDA. These need the headers of CUDA 12 or 13 (CUDA_HOME, /usr/local/cuda, .cuda here, or python3's packages), but
# no driver and no GPU; where there are none, they say what to install. What they build runs with a driver and without.
GPU = flags="$$(go run ./cmd/moegraph env)" && eval "$$flags" &&

gpu:
	$(GPU) go build -tags gpu ./... && go build -tags gpu -o bin/ ./cmd/moegraph ./examples/moe_layer

# The packages that the tag changes, and their users.
gpu-test:
	$(GPU) go test -tags gpu $$(go list -tags gpu -f '{{.ImportPath}} {{join .Deps " "}} {{join .TestImports " "}}' ./... | awk '/internal\/(cuda|nvrtc)/ {print $$1}')

# Every specialization for every architecture; long. It needs NVRTC, and no GPU.
compile-all:
	$(GPU) go test -tags gpu -timeout 2h -run TestCompileAll ./nodes

gpu-lint:
	$(GPU) go vet -tags gpu ./... && go tool staticcheck -tags gpu ./...

# One folder that runs on a machine with a driver, but no Go and no network: see run.sh in it.
gpu-bundle:
	$(GPU) internal/cuda/bundle/make.sh bin/gpu-bundle

# The headers and the compiler of CUDA 13.0 from PyPI, in .cuda, where the targets above find them; 230 MB. With
# WHEELS=... others, such as nvidia-cuda-runtime-cu12==12.9.79.
WHEELS = nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88
CUDA_DIR = .cuda

cuda-headers:
	@python3 -m pip --version >/dev/null || { echo "cuda-headers: no pip: install python3-pip, or a CUDA toolkit" >&2; exit 1; }
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(CUDA_DIR) $(WHEELS)

clean:
	rm -rf bin out
