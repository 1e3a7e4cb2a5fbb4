// What nvcc makes of ordinary CUDA: calls, tables, strings, textures, shared memory, atomics, warps, inline assembly.
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct Particle { float3 place; int kind; double mass; };

__constant__ float table[4] = {1.0f, 0.5f, -0.25f, 1e-3f};
__device__ Particle particles[3] = {{{1, 2, 3}, 4, 5.5}, {{-1, 0, 1e30f}, -1, -0.0}};
__device__ const char *words[2] = {"say \"hello\"\n", "back\\slash"};
__managed__ int counter = 7;

typedef float (*Function)(float);
__device__ __noinline__ float square(float x) { return x * x; }
__device__ __noinline__ float inverse(float x) { return 1.0f / x; }
__device__ Function functions[2] = {square, inverse};

template <typename T> __global__ void scale(T *out, const T *in, T factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = in[i] * factor;
}
template __global__ void scale<float>(float *, const float *, float, int);
template __global__ void scale<double>(double *, const double *, double, int);
template __global__ void scale<__half>(__half *, const __half *, __half, int);

extern "C" __global__ void __launch_bounds__(128, 2) choose(int *out, int which, Particle by_value) {
    switch (which) {
        case 0: out[0] = by_value.kind; break;
        case 1: out[1] = (int)functions[threadIdx.x & 1](table[threadIdx.x & 3]); break;
        case 2: out[2] = __popc(which) + __clz(by_value.kind); break;
        case 3: out[3] = (int)particles[which % 3].mass; break;
        case 4: printf("%s %d %f\n", words[which & 1], which, by_value.mass); break;
        case 5: out[5] = (int)__brev(which); break;
        default: out[6] = -1;
    }
}

extern "C" __global__ void reduce(float *out, const float4 *in, int n) {
    __shared__ float partial[32];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float4 v = in[i];
        sum += v.x + v.y * v.z - v.w;
    }
    for (int offset = 16; offset; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        unsigned lane;
        asm volatile("mov.u32 %0, %%laneid;\n\t// \"quoted\" in a comment\n\t{ .reg .pred p; setp.eq.u32 p, %0, 0;\n\t@p bra DONE%=;\nDONE%=: }"
                     : "=r"(lane));
        if (lane == 0) atomicAdd(out, partial[0]);
    }
    if (threadIdx.x == 0) atomicCAS(&counter, 1, 2);
}

extern "C" __global__ void texture(float4 *out, cudaTextureObject_t t, cudaSurfaceObject_t s) {
    out[0] = tex2D<float4>(t, 0.5f, 1.5f);
    surf2Dwrite(out[1].x, s, 4, 5);
}
