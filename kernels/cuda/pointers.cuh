// Writes addresses into an array in device memory: discrete weights and gradients reach their kernels as addresses.
//
//   array[base + i] = pi for i < count
//
// One thread block of 64 threads. A parameter cannot be indexed, so that each is compared with.
#include "numeric.cuh"

extern "C" __global__ void __launch_bounds__(64)
    pointers(u64* array, int base, int count,
             const void* p0, const void* p1, const void* p2, const void* p3, const void* p4, const void* p5, const void* p6, const void* p7,
             const void* p8, const void* p9, const void* p10, const void* p11, const void* p12, const void* p13, const void* p14, const void* p15,
             const void* p16, const void* p17, const void* p18, const void* p19, const void* p20, const void* p21, const void* p22, const void* p23,
             const void* p24, const void* p25, const void* p26, const void* p27, const void* p28, const void* p29, const void* p30, const void* p31,
             const void* p32, const void* p33, const void* p34, const void* p35, const void* p36, const void* p37, const void* p38, const void* p39,
             const void* p40, const void* p41, const void* p42, const void* p43, const void* p44, const void* p45, const void* p46, const void* p47,
             const void* p48, const void* p49, const void* p50, const void* p51, const void* p52, const void* p53, const void* p54, const void* p55,
             const void* p56, const void* p57, const void* p58, const void* p59, const void* p60, const void* p61, const void* p62, const void* p63) {
    const int i = threadIdx.x;
    const void* p = nullptr;
    p = i == 0 ? p0 : p; p = i == 1 ? p1 : p; p = i == 2 ? p2 : p; p = i == 3 ? p3 : p; p = i == 4 ? p4 : p; p = i == 5 ? p5 : p; p = i == 6 ? p6 : p; p = i == 7 ? p7 : p;
    p = i == 8 ? p8 : p; p = i == 9 ? p9 : p; p = i == 10 ? p10 : p; p = i == 11 ? p11 : p; p = i == 12 ? p12 : p; p = i == 13 ? p13 : p; p = i == 14 ? p14 : p; p = i == 15 ? p15 : p;
    p = i == 16 ? p16 : p; p = i == 17 ? p17 : p; p = i == 18 ? p18 : p; p = i == 19 ? p19 : p; p = i == 20 ? p20 : p; p = i == 21 ? p21 : p; p = i == 22 ? p22 : p; p = i == 23 ? p23 : p;
    p = i == 24 ? p24 : p; p = i == 25 ? p25 : p; p = i == 26 ? p26 : p; p = i == 27 ? p27 : p; p = i == 28 ? p28 : p; p = i == 29 ? p29 : p; p = i == 30 ? p30 : p; p = i == 31 ? p31 : p;
    p = i == 32 ? p32 : p; p = i == 33 ? p33 : p; p = i == 34 ? p34 : p; p = i == 35 ? p35 : p; p = i == 36 ? p36 : p; p = i == 37 ? p37 : p; p = i == 38 ? p38 : p; p = i == 39 ? p39 : p;
    p = i == 40 ? p40 : p; p = i == 41 ? p41 : p; p = i == 42 ? p42 : p; p = i == 43 ? p43 : p; p = i == 44 ? p44 : p; p = i == 45 ? p45 : p; p = i == 46 ? p46 : p; p = i == 47 ? p47 : p;
    p = i == 48 ? p48 : p; p = i == 49 ? p49 : p; p = i == 50 ? p50 : p; p = i == 51 ? p51 : p; p = i == 52 ? p52 : p; p = i == 53 ? p53 : p; p = i == 54 ? p54 : p; p = i == 55 ? p55 : p;
    p = i == 56 ? p56 : p; p = i == 57 ? p57 : p; p = i == 58 ? p58 : p; p = i == 59 ? p59 : p; p = i == 60 ? p60 : p; p = i == 61 ? p61 : p; p = i == 62 ? p62 : p; p = i == 63 ? p63 : p;
    if (i < count) {
        array[base + i] = reinterpret_cast<u64>(p);
    }
}
