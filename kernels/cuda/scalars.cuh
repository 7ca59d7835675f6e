// counter, cycle and schedule: what an optimizer counts and reads, one number each. Launch: one thread.
#include "common.cuh"

// counter: value = count = count + 1 where ready is absent or not 0.
extern "C" __global__ void counter(int* count, const int* ready, int* value) {
    if (!ready || *ready != 0) ++*count;
    if (value) *value = *count;
}

// cycle: count goes 1, 2, ..., every, 1, ...; ready is 1 where it is every. The state keeps how many of a round are
// done, 0 after the last.
extern "C" __global__ void cycle(int* state, int* count, int* ready, i64 every) {
    int n = (int)((u32)*state + 1);
    if (n < 1 || n > every) n = 1;
    const bool last = n == every;
    *state = last ? 0 : n;
    if (count) *count = n;
    if (ready) *ready = last;
}

constexpr int kConstantRate = 0, kLinearDecay = 1, kCosineDecay = 2;

// schedule: the learning rate of a step (nodes.Schedule).
extern "C" __global__ void schedule(const int* step, float* out, double rate, double min_rate, i64 warmup, i64 total, int kind) {
    const double t = *step < 1 ? 1 : *step;
    if (t <= (double)warmup) {
        *out = (float)(rate * t / (double)warmup);
        return;
    }
    double p = (t - 1 - (double)warmup) / (double)(total - warmup < 1 ? 1 : total - warmup);
    if (p > 1) p = 1;
    double r = rate;
    if (kind == kLinearDecay) r = __dadd_rn(min_rate, __dmul_rn(rate - min_rate, 1 - p));
    if (kind == kCosineDecay) r = __dadd_rn(min_rate, __dmul_rn(rate - min_rate, 1 + cos(3.14159265358979323846 * p)) / 2);
    *out = (float)r;
}
