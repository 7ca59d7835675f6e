# moegraph: see README.md. `make` builds, `make test` tests, `make lint` checks, `make bench` measures.

.PHONY: build test race lint cross bench run clean

build:
	go build ./...
	go build -o bin/ ./cmd/moegraph ./examples/moe_layer

test:
	go test ./...

# The packages in which goroutines meet.
race:
	go test -race ./graph ./internal/host ./memory

lint:
	test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	go vet ./...
	go tool staticcheck ./...

# Every system we claim to build for.
cross:
	GOOS=darwin GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...
	GOOS=linux GOARCH=arm64 go vet ./...

bench:
	go test -run '^$$' -bench . -benchmem ./graph ./nodes ./internal/gemm ./dtype ./memory

run:
	go run ./examples/moe_layer

clean:
	rm -rf bin out
