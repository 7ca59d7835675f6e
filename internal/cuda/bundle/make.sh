#!/usr/bin/env bash
# Puts everything that tests and measures on a GPU into one folder: `make gpu-bundle`, or make.sh FOLDER in an
# environment that builds with the tag gpu. The folder runs on a machine that has a driver, but no Go and no network.
# It holds run.sh and files.tar.gz, which run.sh unpacks.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=${1:-bin/gpu-bundle}
limit_mib=50

rm -rf "$folder"
mkdir -p "$folder"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p "$out/bin" "$out/text"

go build -tags gpu -trimpath -ldflags='-s -w' -o "$out/bin/" ./cmd/moegraph ./examples/moe_layer

# Test programs, each in a folder like its package's, where its testdata lies: all packages with a test for the tag, and
# nodes, whose tests run on whatever device there is.
packages=$( { grep -rlE '^//go:build .*\bgpu\b' --include='*_test.go' . | xargs -r dirname | sed 's#^\./##'
	echo nodes; } | sort -u)
for p in $packages; do
	[ -n "$(find "$p" -maxdepth 1 -name '*_test.go' -print -quit 2>/dev/null)" ] || continue
	mkdir -p "$out/$p"
	go test -c -tags gpu -trimpath -ldflags='-s -w' -o "$out/$p/" "./$p"
	if [ -d "$p/testdata" ]; then cp -r "$p/testdata" "$out/$p/"; fi
done

# The peers that we compare with, and the golden cases.
if [ -d bench ]; then cp -r bench "$out/"; fi
shared=${MOEGRAPH_SHARED:-../shared}
if [ -d "$shared/cases" ]; then
	mkdir -p "$out/shared"
	for d in cases layers bench; do
		if [ -d "$shared/$d" ]; then cp -r "$shared/$d" "$out/shared/"; fi
	done
	chmod -R u+w "$out/shared"
fi

# A text for the example: Go sources, as by default.
tar -C "$(go env GOROOT)/src" --exclude=testdata -cf - bufio encoding fmt go io net/http os sort strconv strings time |
	tar -C "$out/text" -xf -

git describe --always --dirty >"$out/version" 2>/dev/null || echo unknown >"$out/version"
tar -C "$out" -czf "$folder/files.tar.gz" .
cp internal/cuda/bundle/run.sh "$folder/"

size=$(du -sm "$folder" | cut -f1)
echo "$folder: $size MiB, $(du -sm "$out" | cut -f1) MiB unpacked; tests of" $packages
if [ "$size" -gt "$limit_mib" ]; then
	echo "$folder: got $size MiB, want at most $limit_mib" >&2
	exit 1
fi
