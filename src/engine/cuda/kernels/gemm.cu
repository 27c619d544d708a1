// Matrix product of activations and a weight, with a fused epilogue.
//
//   out[m, n] = epilogue(sum over k of input[m, k] * weight[n, k])
//
// Epilogues BIAS             + bias[n]
//           BIAS_RESIDUAL    + bias[n] + residual[m, n]
//           BIAS_GELU_ERF    gelu(+ bias[n]), exact form
//           BIAS_GELU_TANH   gelu(+ bias[n]), tanh form
// Shapes    input: [rows, depth]; weight: [columns, depth], as PyTorch stores it; bias: [columns]
//           residual: [rows, columns], read by BIAS_RESIDUAL only; out: [rows, columns], which
//           overlaps no input
//           columns: even; depth: a multiple of 32; pointers are aligned to 16 bytes
// Host      refuses odd columns and other depths (as of hidden size 312), more than 65,535 tiles of
//           rows, and layers that no epilogue computes: ReLU, SiLU, and gated units (GeGLU)
// Launch    (TILE_M / WARP_M) * (TILE_N / WARP_N) warps; grid: ceil(columns / TILE_N),
//           ceil(rows / TILE_M)
// Shared    4 stages of a [TILE_M, 32] tile of the input and a [TILE_N, 32] tile of the weight
// Source    multistage pipeline and swizzle of CUTLASS (include/cutlass/gemm/threadblock/
//           mma_multistage.h); Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016
//
// Batch invariance: each element is the result of depth / 16 tensor-core instructions in ascending
// order of k, whatever the tile and the number of rows, and of an epilogue in which every operation
// states its rounding (see common.cuh). Its bits do not depend on other rows.

#include "common.cuh"

enum Epilogue { BIAS, BIAS_RESIDUAL, BIAS_GELU_ERF, BIAS_GELU_TANH };

enum : int { TILE_K = 32 };
enum : int { STAGES = 4 };
enum : int { WARPS_M = TILE_M / WARP_M };
enum : int { WARPS_N = TILE_N / WARP_N };
enum : int { THREADS = WARPS_M * WARPS_N * WARP_SIZE };
// One tensor-core instruction computes 16x8 elements over 16 values of k.
enum : int { FRAGMENTS_M = WARP_M / 16 };
enum : int { FRAGMENTS_N = WARP_N / 8 };
// 16-byte chunks of a tile row.
enum : int { ROW_CHUNKS = TILE_K / CHUNK };
enum : int { INPUT_BYTES = TILE_M * TILE_K * 2 };
enum : int { WEIGHT_BYTES = TILE_N * TILE_K * 2 };

static_assert(STAGES * (INPUT_BYTES + WEIGHT_BYTES) == SHARED_BYTES, "the manifest states another size");
static_assert(TILE_M * ROW_CHUNKS % THREADS == 0 && TILE_N * ROW_CHUNKS % THREADS == 0, "threads copy whole rows");
static_assert(FRAGMENTS_N % 2 == 0, "weights are loaded for two fragments at once");

// Byte offset of a chunk in a tile. Two rows share the 128 bytes of all banks, so the chunk is
// permuted by the row pair: the eight rows of a matrix that ldmatrix reads hit different banks.
__device__ __forceinline__ u32 swizzle(int row, int chunk) {
    return (row * ROW_CHUNKS + (chunk ^ ((row >> 1) & (ROW_CHUNKS - 1)))) * CHUNK_BYTES;
}

// Copies a [TILE_ROWS, 32] tile to shared memory. Rows beyond the matrix become zero.
template <int TILE_ROWS>
__device__ __forceinline__ void copy_tile(u32 target, const u16* matrix, int first_row, int rows, int first_k,
                                          int depth) {
#pragma unroll
    for (int i = 0; i < TILE_ROWS * ROW_CHUNKS / THREADS; i++) {
        const int id = threadIdx.x + i * THREADS;
        const int row = id / ROW_CHUNKS;
        const int chunk = id % ROW_CHUNKS;
        const bool valid = first_row + row < rows;
        // The address of an invalid row is not read, but it has to be a valid one.
        const u64 matrix_row = valid ? first_row + row : 0;
        copy_async(target + swizzle(row, chunk), matrix + matrix_row * depth + first_k + chunk * CHUNK, valid);
    }
}

// erf by formula 7.1.26 of Abramowitz and Stegun, with an absolute error of 1.5e-7.
__device__ __forceinline__ float gelu_erf(float x) {
    const float z = fabsf(x) * 0.707106781f;
    const float t = reciprocal(fmaf(0.3275911f, z, 1.0f));
    float polynomial = fmaf(1.061405429f, t, -1.453152027f);
    polynomial = fmaf(polynomial, t, 1.421413741f);
    polynomial = fmaf(polynomial, t, -0.284496736f);
    polynomial = fmaf(polynomial, t, 0.254829592f) * t;
    const float erf = fmaf(-polynomial, exp2_approx(-z * z * LOG2_E), 1.0f);
    const float half = 0.5f * x;
    return fmaf(half, x < 0.0f ? -erf : erf, half);
}

// x * (1 + tanh(u)) / 2, which is x / (1 + e^(-2u)).
__device__ __forceinline__ float gelu_tanh(float x) {
    const float u = 0.797884561f * fmaf(0.044715f * x * x, x, x);
    return x * reciprocal(1.0f + exp2_approx(-2.0f * LOG2_E * u));
}

__device__ __forceinline__ float activate(float x) {
    if (EPILOGUE == BIAS_GELU_ERF) return gelu_erf(x);
    if (EPILOGUE == BIAS_GELU_TANH) return gelu_tanh(x);
    return x;
}

// Multiplies the tiles of one stage and adds the products to the accumulators of this warp.
__device__ __forceinline__ void multiply_stage(float (&sums)[FRAGMENTS_M][FRAGMENTS_N][4], u32 input_tile,
                                               u32 weight_tile, int warp_row, int warp_column, int lane) {
#pragma unroll
    for (int k = 0; k < TILE_K / 16; k++) {
        u32 a[FRAGMENTS_M][4], b[FRAGMENTS_N / 2][4];
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; i++) {
            load_matrices(a[i], input_tile + swizzle(warp_row + i * 16 + lane % 16, k * 2 + lane / 16));
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS_N / 2; i++) {
            const int row = warp_column + i * 16 + lane % 8 + lane / 16 * 8;
            load_matrices(b[i], weight_tile + swizzle(row, k * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < FRAGMENTS_M; i++) {
#pragma unroll
            for (int j = 0; j < FRAGMENTS_N; j++) {
                multiply_accumulate(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

// Applies the epilogue to two neighbouring elements of a row and writes them.
__device__ __forceinline__ void write_pair(float first, float second, const u16* bias, const u16* residual, u16* out,
                                           u64 row, int column, int columns) {
    const u32 bias_pair = *(const u32*)(bias + column);
    const u64 at = row * columns + column;
    first = activate(first + low_half(bias_pair));
    second = activate(second + high_half(bias_pair));
    if (EPILOGUE == BIAS_RESIDUAL) {
        const u32 residual_pair = *(const u32*)(residual + at);
        first += low_half(residual_pair);
        second += high_half(residual_pair);
    }
    *(u32*)(out + at) = pack_pair(first, second);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    KERNEL_NAME(const u16* __restrict__ input, const u16* __restrict__ weight, const u16* __restrict__ bias,
                const u16* __restrict__ residual, u16* __restrict__ out, int rows, int columns, int depth) {
    extern __shared__ __align__(128) unsigned char shared[];
    const u32 input_tiles = shared_address(shared);
    const u32 weight_tiles = input_tiles + STAGES * INPUT_BYTES;
    const int warp = threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    const int first_row = blockIdx.y * TILE_M;
    const int first_column = blockIdx.x * TILE_N;
    const int warp_row = warp % WARPS_M * WARP_M;
    const int warp_column = warp / WARPS_M * WARP_N;
    const int steps = depth / TILE_K;

    auto copy_stage = [&](int step) {
        if (step < steps) {
            const int stage = step % STAGES;
            copy_tile<TILE_M>(input_tiles + stage * INPUT_BYTES, input, first_row, rows, step * TILE_K, depth);
            copy_tile<TILE_N>(weight_tiles + stage * WEIGHT_BYTES, weight, first_column, columns, step * TILE_K, depth);
        }
        // Also commits empty groups, so that the number of groups in flight is constant.
        commit_copies();
    };

    float sums[FRAGMENTS_M][FRAGMENTS_N][4];
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M * FRAGMENTS_N * 4; i++) (&sums[0][0][0])[i] = 0.0f;

#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) copy_stage(step);

    for (int step = 0; step < steps; step++) {
        wait_copies<STAGES - 2>();
        // Makes the copies of all threads visible, and ensures that no warp still reads the stage
        // that the next copy overwrites: it was multiplied in the previous step.
        __syncthreads();
        copy_stage(step + STAGES - 1);
        const int stage = step % STAGES;
        multiply_stage(sums, input_tiles + stage * INPUT_BYTES, weight_tiles + stage * WEIGHT_BYTES, warp_row,
                       warp_column, lane);
    }

#pragma unroll
    for (int i = 0; i < FRAGMENTS_M; i++) {
#pragma unroll
        for (int j = 0; j < FRAGMENTS_N; j++) {
            const int column = first_column + warp_column + j * 8 + lane % 4 * 2;
            if (column >= columns) continue;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = first_row + warp_row + i * 16 + lane / 4 + half * 8;
                if (row >= rows) continue;
                write_pair(sums[i][j][half * 2], sums[i][j][half * 2 + 1], bias, residual, out, row, column, columns);
            }
        }
    }
}
