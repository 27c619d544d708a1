// Layers of a classification or reranking head, for one vector a sequence.
//
// Variants  HEAD_DENSE_TANH   out[s, n] = tanh(weight[n] . input[offsets[s]] + bias[n]), from the
//                             hidden state of the first token of each sequence
//           HEAD_LOGITS       out[s, n] = weight[n] . input[s] + bias[n], from f32 vectors;
//                             `offsets` is not read
// Shapes    input: [tokens, depth] (HEAD_DENSE_TANH) or [sequences, depth] f32 (HEAD_LOGITS)
//           offsets: [sequences + 1] u32; weight: [columns, depth]; bias: [columns]
//           out: [sequences, columns] f32
//           depth: a multiple of 8; pointers are aligned to 16 bytes
// Host      refuses another depth, more than 65,535 sequences, and heads with another activation
//           than tanh, such as ReLU of DistilBERT
// Launch    128 threads, one warp an output; grid: ceil(columns / 4), sequences
// Shared    none
// Source    pooler and classifier of Devlin et al., "BERT", 2018
//
// A head reads one row a sequence, so its time is that of reading the weights: a product on the
// tensor cores would not be faster for the batches of a sidecar.

#include "common.cuh"

enum Head { HEAD_DENSE_TANH, HEAD_LOGITS };

enum : int { WARPS = 4 };

// tanh(x) = 1 - 2 / (1 + e^2x), with an absolute error of 2e-7.
__device__ __forceinline__ float tanh_exp(float x) {
    return fmaf(-2.0f, reciprocal(1.0f + exp2_approx(2.0f * LOG2_E * x)), 1.0f);
}

// Input of the dense layer, in the storage format.
__device__ __forceinline__ void read_input(float (&values)[CHUNK], const u16* source) {
    read_chunk(values, source);
}

// Input of the logits: the output of the dense layer.
__device__ __forceinline__ void read_input(float (&values)[CHUNK], const float* source) {
    const float4 low = ((const float4*)source)[0];
    const float4 high = ((const float4*)source)[1];
    values[0] = low.x;
    values[1] = low.y;
    values[2] = low.z;
    values[3] = low.w;
    values[4] = high.x;
    values[5] = high.y;
    values[6] = high.z;
    values[7] = high.w;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE)
    KERNEL_NAME(const INPUT_TYPE* __restrict__ input, const u32* __restrict__ offsets, const u16* __restrict__ weight,
                const u16* __restrict__ bias, float* __restrict__ out, int columns, int depth) {
    const int column = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    if (column >= columns) return;

    const u64 row = HEAD == HEAD_DENSE_TANH ? offsets[blockIdx.y] : blockIdx.y;
    const INPUT_TYPE* vector = input + row * depth;
    const u16* weights = weight + (u64)column * depth;
    float sum = 0.0f;
    for (int at = lane * CHUNK; at < depth; at += WARP_SIZE * CHUNK) {
        float values[CHUNK], factors[CHUNK];
        read_input(values, vector + at);
        read_chunk(factors, weights + at);
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum = fmaf(values[j], factors[j], sum);
    }
    sum = sum_warp(sum);
    if (lane == 0) {
        const float result = sum + low_half(bias[column]);
        out[(u64)blockIdx.y * columns + column] = HEAD == HEAD_DENSE_TANH ? tanh_exp(result) : result;
    }
}
