// The loop of elementwise kernels: 16-byte accesses, several in flight, the grid strides over the elements.
// Launch: 256 threads a block, up to 4 blocks a multiprocessor, all resident (nodes/launch_cuda.go: elementwiseLaunch).
#pragma once
#include "common.cuh"

// each runs body over elements [0, n): N at a time and Unroll of those in flight, then the rest one at a time.
// Body has a type State<W> for W elements; load(state, at) only reads, finish(state, at) computes and writes. The output may
// be one of the operands, of equally wide elements (graph.InPlacer): no pointer is __restrict__, and nothing is read twice.
template <int N, int Unroll, class Body> __device__ __forceinline__ void each(i64 n, const Body& body) {
    const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
    const i64 vectors = n / N;
    i64 v = thread;
    for (; v + (Unroll - 1) * step < vectors; v += Unroll * step) {
        typename Body::template State<N> s[Unroll];
#pragma unroll
        for (int u = 0; u < Unroll; u++) body.template load<N>(s[u], (v + u * step) * N);
#pragma unroll
        for (int u = 0; u < Unroll; u++) body.template finish<N>(s[u], (v + u * step) * N);
    }
    for (; v < vectors; v += step) {
        typename Body::template State<N> s;
        body.template load<N>(s, v * N);
        body.template finish<N>(s, v * N);
    }
    for (i64 i = vectors * N + thread; i < n; i += step) {
        typename Body::template State<1> s;
        body.template load<1>(s, i);
        body.template finish<1>(s, i);
    }
}

// Map is the Body of y = f(x): Function has operator()(float).
template <class X, class Y, class Function> struct Map {
    void* y;
    const void* x;
    Function f;
    template <int W> using State = Pack<X, W>;
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { s.load(x, at); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float out[W];
#pragma unroll
        for (int i = 0; i < W; i++) out[i] = f(s.get(i));
        Pack<Y, W> p;
        p.put(out);
        p.store(y, at);
    }
};

// map_rows runs y = f(x) over the rows in use.
template <class X, class Y, class Function>
__device__ __forceinline__ void map_rows(void* y, const void* x, const int* count, i64 capacity, i64 width, Function f) {
    each<narrow_vector<X, Y>(), 4>(rows_in_use(count, capacity) * width, Map<X, Y, Function>{y, x, f});
}
