#!/usr/bin/env bash
# Runs what lies in this folder on a machine with an NVIDIA driver; it needs neither Go nor a network. Kernels are
# compiled on the machine by NVRTC, of a CUDA toolkit or of PyPI's packages: MOEGRAPH_NVRTC names one.
#
#	./run.sh                       all tests
#	./run.sh test [-test.run=...]  all tests, with these flags
#	./run.sh one PACKAGE [flags]   the tests of one package, such as internal/cuda
#	./run.sh bench [flags]         all benchmarks, no tests
#	./run.sh check TOOL [flags]    the device tests under compute-sanitizer: memcheck, initcheck, racecheck
#	./run.sh example [flags]       the main job on the GPU
#	./run.sh info                  what this is and what it finds
#
# Every test program's whole output goes to $OUT (default: out here), one file each. The exit status is 1 if one fails.
set -uo pipefail
cd "$(dirname "$0")"
OUT=$(realpath -m "${OUT:-out}")
mkdir -p "$OUT"
if [ files.tar.gz -nt files/version ]; then
	rm -rf files && mkdir files && tar -C files -xzmf files.tar.gz || exit 1
fi
cd files || exit 1
here=$PWD
if [ -d "$here/shared" ]; then export MOEGRAPH_SHARED=${MOEGRAPH_SHARED:-$here/shared}; fi
export MOEGRAPH_CACHE=${MOEGRAPH_CACHE:-$OUT/cache}

# run_package PACKAGE COMMAND...: runs a package's tests by a command before them, which may be empty.
run_package() {
	local package=$1 program log began status
	shift
	program=./$(basename "$package").test
	log=$OUT/${package//\//_}.txt
	began=$SECONDS
	(cd "$here/$package" && "${prefix[@]}" "$program" "$@") >"$log" 2>&1
	status=$?
	printf '%-20s %s  %3d passed  %3d failed  %3d skipped  %4d s  %s\n' "$package" \
		"$([ $status = 0 ] && echo ok || echo FAIL)" "$(grep -c '^ *--- PASS' "$log")" "$(grep -c '^ *--- FAIL' "$log")" \
		"$(grep -c '^ *--- SKIP' "$log")" $((SECONDS - began)) "$log"
	if [ $status != 0 ]; then
		failed=1
		grep -B 12 -A 3 -E '^ *--- FAIL|^panic:|^fatal error|ERROR SUMMARY: [1-9]' "$log" | head -60
	fi
}

packages() { find . -name '*.test' -type f -printf '%h\n' | sed 's#^\./##' | sort; }

failed=0
prefix=()
what=${1:-test}
[ $# -gt 0 ] && shift
case $what in
test)
	for p in $(packages); do run_package "$p" -test.v -test.timeout=20m "$@"; done
	;;
one)
	package=$1
	shift
	run_package "$package" -test.v "$@"
	cat "$OUT/${package//\//_}.txt"
	;;
bench)
	for p in $(packages); do
		run_package "$p" -test.run='^$' -test.bench=. -test.benchmem "$@"
		grep '^Benchmark' "$OUT/${p//\//_}.txt"
	done
	;;
check)
	tool=${1:-memcheck}
	[ $# -gt 0 ] && shift
	# The driver is asked for a kernel's parameters until it has no more, which the tool would count as an error.
	prefix=(compute-sanitizer "--tool=$tool" --report-api-errors no --error-exitcode=86)
	for p in $(packages); do run_package "$p" -test.v -test.short "$@"; done
	;;
example)
	./bin/moe_layer -device cuda -text text -out "$OUT/moe_layer" "$@" || failed=1
	;;
info)
	cat version 2>/dev/null
	nvidia-smi -L 2>&1
	(cd internal/cuda && ./cuda.test -test.v -test.run TestDriver_This)
	./bin/moegraph info
	;;
*)
	sed -n '2,15s/^# \{0,1\}//p' ../run.sh
	exit 2
	;;
esac
exit $failed
