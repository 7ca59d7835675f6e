// y = x0 + x1 + ... in float32 from left to right, rounded once, for Params::N operands of at most 8.
// Launch: elementwise.cuh. y may be one of the operands: each element is read before it is written, by one thread.
#include "elementwise.cuh"

// Operand<I>::Type is the format of operand I.
template <int I> struct Operand;
template <> struct Operand<0> { using Type = Params::X0Type; };
template <> struct Operand<1> { using Type = Params::X1Type; };
template <> struct Operand<2> { using Type = Params::X2Type; };
template <> struct Operand<3> { using Type = Params::X3Type; };
template <> struct Operand<4> { using Type = Params::X4Type; };
template <> struct Operand<5> { using Type = Params::X5Type; };
template <> struct Operand<6> { using Type = Params::X6Type; };
template <> struct Operand<7> { using Type = Params::X7Type; };

constexpr int kVector = narrow_vector<Params::YType, Params::X0Type, Params::X1Type, Params::X2Type, Params::X3Type, Params::X4Type,
                                      Params::X5Type, Params::X6Type, Params::X7Type>(); // those that are not there are float

struct Sum {
    void* y;
    const void* x[8];

    // State holds the operands from I on.
    template <int W, int I> struct From {
        Pack<typename Operand<I>::Type, W> first;
        From<W, I + 1> rest;
    };
    template <int W> struct From<W, Params::N> {};
    template <int W> using State = From<W, 0>;

    template <int W, int I> __device__ __forceinline__ void load_from(From<W, I>& s, i64 at) const {
        if constexpr (I < Params::N) {
            s.first.load(x[I], at);
            load_from(s.rest, at);
        }
    }
    template <int W, int I> __device__ __forceinline__ void add_from(const From<W, I>& s, float (&acc)[W]) const {
        if constexpr (I < Params::N) {
#pragma unroll
            for (int i = 0; i < W; i++) acc[i] = I == 0 ? s.first.get(i) : acc[i] + s.first.get(i);
            add_from(s.rest, acc);
        }
    }
    template <int W> __device__ __forceinline__ void load(State<W>& s, i64 at) const { load_from(s, at); }
    template <int W> __device__ __forceinline__ void finish(const State<W>& s, i64 at) const {
        float acc[W];
        add_from(s, acc);
        Pack<Params::YType, W> p;
        p.put(acc);
        p.store(y, at);
    }
};

extern "C" __global__ void __launch_bounds__(256, 4)
    sum(void* y, const int* count, i64 capacity, i64 width, const void* x0, const void* x1, const void* x2, const void* x3, const void* x4,
        const void* x5, const void* x6, const void* x7) {
    const Sum body{y, {x0, x1, x2, x3, x4, x5, x6, x7}};
    each<kVector, Params::N <= 2 ? 4 : Params::N <= 4 ? 2 : 1>(rows_in_use(count, capacity) * width, body);
}
