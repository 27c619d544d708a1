// Layer normalisation of a row that one warp holds in registers (Ba, Kiros, Hinton, "Layer
// Normalization", 2016).
//
// Mean and variance are computed in two passes over the registers, not from sums of squares, which
// cancel. Sums have a fixed order, so the bits of a row do not depend on the other rows.

#pragma once

#include "common.cuh"

// Lane l holds the chunks l, l + 32, l + 64 and l + 96 of its row.
enum : int { CHUNKS_PER_LANE = 4 };
// Largest width of a row: the registers of a warp hold no more without spills.
enum : int { WIDTH_MAX = CHUNKS_PER_LANE * WARP_SIZE * CHUNK };

struct WarpRow {
    float values[CHUNKS_PER_LANE][CHUNK];
};

__device__ __forceinline__ void clear_row(WarpRow& row) {
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_LANE; i++) {
#pragma unroll
        for (int j = 0; j < CHUNK; j++) row.values[i][j] = 0.0f;
    }
}

// Adds a row of global memory, element by element.
__device__ __forceinline__ void add_row(WarpRow& row, const u16* source, int width, int lane) {
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_LANE; i++) {
        const int chunk = i * WARP_SIZE + lane;
        if (chunk * CHUNK < width) {
            float values[CHUNK];
            read_chunk(values, source + chunk * CHUNK);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) row.values[i][j] += values[j];
        }
    }
}

// Writes (row - mean) / sqrt(variance + epsilon) * gamma + beta.
__device__ __forceinline__ void write_normalized(const WarpRow& row, const u16* gamma, const u16* beta, u16* out,
                                                 int width, float epsilon, int lane) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_LANE; i++) {
#pragma unroll
        for (int j = 0; j < CHUNK; j++) sum += row.values[i][j];
    }
    const float mean = sum_warp(sum) / (float)width;

    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CHUNKS_PER_LANE; i++) {
        // Chunks beyond the width are zero, and would add mean^2 each.
        if ((i * WARP_SIZE + lane) * CHUNK < width) {
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                const float centered = row.values[i][j] - mean;
                squares = fmaf(centered, centered, squares);
            }
        }
    }
    const float scale = rsqrtf(sum_warp(squares) / (float)width + epsilon);

#pragma unroll
    for (int i = 0; i < CHUNKS_PER_LANE; i++) {
        const int chunk = i * WARP_SIZE + lane;
        if (chunk * CHUNK < width) {
            float factor[CHUNK], offset[CHUNK], result[CHUNK];
            read_chunk(factor, gamma + chunk * CHUNK);
            read_chunk(offset, beta + chunk * CHUNK);
#pragma unroll
            for (int j = 0; j < CHUNK; j++) {
                result[j] = fmaf((row.values[i][j] - mean) * scale, factor[j], offset[j]);
            }
            write_chunk(out + chunk * CHUNK, result);
        }
    }
}
