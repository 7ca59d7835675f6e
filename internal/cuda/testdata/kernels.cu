// Kernels of this package's tests. kernels.ptx is made of this file by NVRTC for compute_80, with its .version lowered
// to 7.0, so that drivers since CUDA 11.0 take it:
//	nvrtc -arch=compute_80 -std=c++17 kernels.cu

struct Big { unsigned int word[32]; };

// echo writes its arguments to out: a, c, d, then the 32 words of b.
extern "C" __global__ void echo(unsigned char a, Big b, unsigned int c, unsigned long long d, unsigned long long *out) {
	out[0] = a;
	out[1] = c;
	out[2] = d;
	for (int i = 0; i < 32; i++) out[3 + i] = b.word[i];
}

// add adds v to n ints.
extern "C" __global__ void add(int *x, int n, int v) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < n) x[i] += v;
}

// fault writes where nothing is.
extern "C" __global__ void fault(unsigned long long address) { *(volatile int *)address = 1; }

// shared uses n ints of dynamic shared memory.
extern "C" __global__ void shared(int *x, int n) {
	extern __shared__ int s[];
	for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
	__syncthreads();
	if (threadIdx.x == 0) x[0] = s[n - 1];
}
