// Pooling of packed sequences: one f32 vector a sequence, optionally truncated and scaled to unit
// length.
//
// Variants  POOL_MEAN    mean of the rows
//           POOL_FIRST   the first row, which is [CLS] of BERT
//           POOL_LAST    the last row
// Shapes    hidden: [tokens, width]; offsets: [sequences + 1] u32; out: [sequences, out_width] f32
//           width: a multiple of 8; out_width: a multiple of 8, at most width and 1024 (leading
//           columns, as of Matryoshka embeddings; the norm is of the truncated vector)
//           normalize: 0 or 1; sequences have at least one row; pointers are aligned to 16 bytes
// Host      refuses other widths, an out_width above width, empty sequences, and other poolings,
//           such as maximum and weighted mean
// Launch    128 threads; grid: sequences. Each thread has 8 columns and sums rows in their order.
// Shared    16 bytes, static
// Source    Reimers, Gurevych, "Sentence-BERT", 2019; lower bound of the norm as in
//           torch.nn.functional.normalize

#include "common.cuh"

enum Pooling { POOL_MEAN, POOL_FIRST, POOL_LAST };

enum : int { WARPS = 4 };
enum : int { THREADS = WARPS * WARP_SIZE };
#define NORM_MIN 1e-12f

// Sums over the block. All threads receive the same bits.
__device__ __forceinline__ float sum_block(float value) {
    __shared__ float partial[WARPS];
    value = sum_warp(value);
    if (threadIdx.x % WARP_SIZE == 0) partial[threadIdx.x / WARP_SIZE] = value;
    __syncthreads();
    return (partial[0] + partial[1]) + (partial[2] + partial[3]);
}

__device__ __forceinline__ void add_chunk(float (&sum)[CHUNK], const u16* source) {
    float values[CHUNK];
    read_chunk(values, source);
#pragma unroll
    for (int j = 0; j < CHUNK; j++) sum[j] += values[j];
}

// Pools 8 columns of the rows from `begin` to `end`.
__device__ __forceinline__ void pool_chunk(float (&sum)[CHUNK], const u16* columns, int width, u32 begin, u32 end) {
    if (POOLING == POOL_MEAN) {
#pragma unroll 4
        for (u32 row = begin; row < end; row++) add_chunk(sum, columns + (u64)row * width);
        const float inverse = 1.0f / (float)(end - begin);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum[j] *= inverse;
    } else {
        add_chunk(sum, columns + (u64)(POOLING == POOL_FIRST ? begin : end - 1) * width);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    KERNEL_NAME(const u16* __restrict__ hidden, const u32* __restrict__ offsets, float* __restrict__ out, int width,
                int out_width, int normalize) {
    const int column = threadIdx.x * CHUNK;
    const bool active = column < out_width;

    float pooled[CHUNK] = {};
    if (active) pool_chunk(pooled, hidden + column, width, offsets[blockIdx.x], offsets[blockIdx.x + 1]);

    float scale = 1.0f;
    if (normalize) {
        float squares = 0.0f;
#pragma unroll
        for (int j = 0; j < CHUNK; j++) squares = fmaf(pooled[j], pooled[j], squares);
        scale = 1.0f / fmaxf(sqrtf(sum_block(squares)), NORM_MIN);
    }
    if (active) {
        float4* target = (float4*)(out + (u64)blockIdx.x * out_width + column);
        target[0] = make_float4(pooled[0] * scale, pooled[1] * scale, pooled[2] * scale, pooled[3] * scale);
        target[1] = make_float4(pooled[4] * scale, pooled[5] * scale, pooled[6] * scale, pooled[7] * scale);
    }
}
