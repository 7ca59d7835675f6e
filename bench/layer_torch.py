#!/usr/bin/env python3
"""Holds moegraph's mixture-of-experts layer against the same layer in PyTorch, on one GPU, in one run.

    python3 bench/layer_torch.py [--moegraph PROGRAM] [--compile] [--precision FORMATS] [--rows N,...] [SHAPE ...]

For each shape: PyTorch's rate for the grouped matrix products, its layer forward and backward (eager; with --compile
also compiled, and captured as a CUDA graph where it can be), then `moegraph bench` of the same shape, and the ratios of
times: above 1 moegraph is the faster one. With --rows only the products are measured, with so many rows for each expert:
PyTorch's in bf16, moegraph's in bf16 and in each of the block-scaled formats. Data are random, bf16; the routing is that of random logits. TF are 1e12
floating-point operations a second; a layer's are 18 T k H I.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F

DEVICE = "cuda"
# E experts, k a token, H hidden, I inner width, T tokens: as `moegraph bench` has them.
SHAPES = {
    "mixtral": (8, 2, 4096, 14336, 8192),
    "qwen3-30b": (128, 8, 2048, 768, 16384),
    "olmoe": (64, 8, 2048, 1024, 16384),
    "dsv3-ep8": (32, 8, 7168, 2048, 4096),
    "gpt-oss-20b": (32, 4, 2880, 2880, 8192),
    "small": (8, 2, 1024, 2048, 512),
}
grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def median_ms(f, rounds=20, warm=5):
    """Median time on the device of one call, in milliseconds."""
    for _ in range(warm):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def layer(x, router, fc1, fc2, k):
    """softmax, then top k; swiglu experts on rows sorted by expert; sum over a token's experts in float32."""
    experts = fc1.shape[0]
    prob, idx = (x @ router.t()).float().softmax(-1).topk(k, -1)
    expert_of_slot, slot = idx.reshape(-1).sort(stable=True)
    ends = torch.searchsorted(expert_of_slot, torch.arange(experts, device=x.device), right=True).to(torch.int32)
    token = slot // k
    gate, up = grouped_mm(x[token], fc1.transpose(-2, -1), offs=ends).chunk(2, -1)
    rows = grouped_mm(F.silu(gate) * up, fc2.transpose(-2, -1), offs=ends)
    rows = rows.float() * prob.reshape(-1)[slot][:, None]
    return torch.zeros_like(x, dtype=torch.float32).index_add_(0, token, rows).to(x.dtype)


def captured(step):
    """step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def normal(*shape, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(torch.bfloat16)


def products(shape, rows=None):
    """Times of the grouped products without what moegraph fuses into them, in milliseconds, and their operations."""
    e, k, h, i, t = shape
    if rows:
        m = rows * e
        ends = torch.arange(rows, m + 1, rows, device=DEVICE, dtype=torch.int32)
    else:
        m = t * k
        idx = torch.randn(t, e, device=DEVICE).topk(k, -1).indices
        ends = torch.bincount(idx.reshape(-1), minlength=e).cumsum(0).to(torch.int32)
    a, mid, wide = normal(m, h), normal(m, i), normal(m, 2 * i)
    fc1, fc2 = normal(e, 2 * i, h, scale=h**-0.5), normal(e, h, i, scale=i**-0.5)
    calls = {
        "fc1": (2, lambda: grouped_mm(a, fc1.transpose(-2, -1), offs=ends)),
        "fc2": (1, lambda: grouped_mm(mid, fc2.transpose(-2, -1), offs=ends)),
        "fc1 dgrad": (2, lambda: grouped_mm(wide, fc1, offs=ends)),
        "fc1 wgrad": (2, lambda: grouped_mm(wide.t(), a, offs=ends)),
    }
    return {name: (median_ms(f), n * 2 * m * h * i) for name, (n, f) in calls.items()}


def compare_rows(program, name, rows, formats):
    """Holds the products with few rows an expert against PyTorch's. The weights of these shapes exceed the L2 cache."""
    torch_ms = {n: products(SHAPES[name], n) for n in rows}
    torch.cuda.empty_cache()
    for n in rows:
        print(f"{name}, {n} rows an expert: torch grouped_mm: " + ", ".join(f"{what} {ms:.4f} ms" for what, (ms, _) in torch_ms[n].items()))
    if not program:
        return
    # The least padding that block-scaled operands allow; PyTorch's rows have none.
    lines = moegraph_lines(program, name, "-precision", formats, "-rows", ",".join(map(str, rows)), "-alignment", "128")
    n = 0
    for line in lines[1:]:
        head = re.match(r".* with (\d+) rows an expert", line)
        if head:
            n, bf16 = int(head.group(1)), {}
        found = re.match(r"  (\S.*\S) +\S+ +([0-9.]+) ms, .*?(?:, (\w+))?$", line)
        if not found:
            print(line, flush=True)
            continue
        what, ms, kind = found.group(1), float(found.group(2)), found.group(3)
        bf16.setdefault(what, ms)
        ratios = [f"bf16 / this {bf16[what] / ms:.2f}"]
        if what in torch_ms[n]:
            ratios.append(f"torch / this {torch_ms[n][what][0] / ms:.2f}")
        print(f"{line}: " + ", ".join(ratios), flush=True)


def measure(shape, compiled):
    """Times of the layer, forward and backward, in milliseconds."""
    e, k, h, i, t = shape
    weights = [normal(t, h), normal(e, h, scale=h**-0.5), normal(e, 2 * i, h, scale=h**-0.5), normal(e, h, i, scale=i**-0.5)]
    for w in weights:
        w.requires_grad_()
    dy = normal(t, h)

    def step(f):
        return torch.autograd.grad(f(*weights, k), weights, dy)

    times = {"eager": median_ms(lambda: step(layer))}
    if compiled:
        fast = torch.compile(layer, dynamic=False)
        for name, f in (("compiled", lambda: median_ms(lambda: step(fast))), ("compiled, captured", lambda: median_ms(captured(lambda: step(fast)).replay))):
            try:
                times[name] = f()
            except Exception as err:  # what PyTorch cannot capture is no result
                print(f"  torch {name}: failed: {str(err).splitlines()[0][:200]}")
        torch._dynamo.reset()
    return times


def moegraph_lines(program, name, *flags):
    """The lines of moegraph's bench of one shape."""
    done = subprocess.run([program, "bench", "-device", "cuda:0", "-shape", name, *flags], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} bench -shape {name}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def find_program(given):
    here = os.path.dirname(os.path.abspath(__file__))
    for path in [given, os.path.join(here, "..", "bin", "moegraph"), shutil.which("moegraph")]:
        if path and os.path.exists(path):
            return path
    return None


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--moegraph", help="the program; default bin/moegraph beside this folder, or on PATH")
    args.add_argument("--compile", action="store_true", help="torch.compile too")
    args.add_argument("--precision", default="bf16,mxfp8,nvfp4", help="with --rows, formats of moegraph's operands, bf16 first; default %(default)s")
    args.add_argument("--rows", type=lambda s: [int(n) for n in s.split(",")], help="numbers of rows an expert, separated by commas")
    args.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    args = args.parse_args()
    for name in args.shapes:
        if name not in SHAPES:
            sys.exit(f"shape: got {name}, want some of {', '.join(SHAPES)}")
    if grouped_mm is None:
        sys.exit(f"torch {torch.__version__} has no grouped_mm: want 2.8 or later")
    program = find_program(args.moegraph)
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name()}; moegraph: {program or 'not found'}")
    torch.manual_seed(0)
    if args.rows:
        for name in args.shapes or SHAPES:
            compare_rows(program, name, args.rows, args.precision)
        return
    a, b = normal(8192, 8192), normal(8192, 8192)
    # A chip at its power limit lowers its clock within a tenth of a second: both rates are of use.
    burst = median_ms(lambda: a @ b.t(), rounds=5, warm=2)
    sustained = median_ms(lambda: a @ b.t(), rounds=300, warm=200)
    print(f"cuBLAS bf16, 8192 x 8192 x 8192: {2 * 8192**3 / burst / 1e9:.0f} TF in a burst, {2 * 8192**3 / sustained / 1e9:.0f} TF sustained")
    del a, b
    for name in args.shapes or SHAPES:
        shape = SHAPES[name]
        e, k, h, i, t = shape
        print(f"{name}: experts {e}, top {k}, hidden {h}, intermediate {i}, tokens {t}", flush=True)
        print("  torch grouped_mm: " + ", ".join(f"{what} {flops / ms / 1e9:.0f} TF" for what, (ms, flops) in products(shape).items()), flush=True)
        times = measure(shape, args.compile)
        for what, ms in times.items():
            print(f"  torch layer forward+backward, {what}: {ms:.3f} ms, {18 * t * k * h * i / ms / 1e9:.0f} TF", flush=True)
        torch.cuda.empty_cache()
        if not program:
            continue
        lines = moegraph_lines(program, name)
        print("\n".join("  moegraph " + line.strip() for line in lines[2:]))
        found = re.search(r"captured ([0-9.]+) ms", "\n".join(lines))
        if found:
            ours = float(found.group(1))
            print("  torch / moegraph captured: " + ", ".join(f"{what} {ms / ours:.2f}" for what, ms in times.items()), flush=True)


main()
