// Self-attention over packed sequences of different lengths, without a mask.
//
//   out[i] = sum over j of softmax_j(scale * q[i] . k[j]) * v[j], within each sequence and head
//
// Shapes    qkv: [tokens, 3 * heads * HEAD_WIDTH]; a row has the queries of all heads, then the
//           keys, then the values
//           out: [tokens, heads * HEAD_WIDTH], which does not overlap qkv
//           offsets: [sequences + 1] u32, first row of each sequence and the number of rows
//           tiles: [grid.x] pairs of u32: a sequence, and the first of 64 query rows within it.
//           The host lists all tiles of all sequences, so no block is idle.
//           scale_log2: log2(e) / sqrt(HEAD_WIDTH)
//           pointers are aligned to 16 bytes
// Host      refuses other head widths, more than 65,535 heads, empty sequences, and models with a
//           mask, a window, rotary embeddings or relative positions, which no kernel computes
// Launch    128 threads; grid: tiles, heads. Each warp has 16 query rows.
// Shared    a [64, HEAD_WIDTH] tile of queries, and two stages of key and value tiles of that size
// Source    Dao, "FlashAttention-2", 2023: online softmax in registers, one pass over the keys;
//           exp2 instead of exp, with log2(e) in the scale
//
// Batch invariance: tiles are relative to the start of a sequence, so the bits of a sequence do not
// depend on the others.

#include "common.cuh"

enum : int { WARPS = 4 };
enum : int { THREADS = WARPS * WARP_SIZE };
enum : int { QUERY_ROWS = WARPS * 16 };
enum : int { KEY_ROWS = 64 };
enum : int { ROW_CHUNKS = HEAD_WIDTH / CHUNK };
enum : int { QUERY_BYTES = QUERY_ROWS * HEAD_WIDTH * 2 };
enum : int { KEY_BYTES = KEY_ROWS * HEAD_WIDTH * 2 };
// Below every score. A finite value, since infinity minus infinity is not a number.
#define MASKED (-1e30f)

static_assert(QUERY_BYTES + 4 * KEY_BYTES == SHARED_BYTES, "the manifest states another size");
static_assert(HEAD_WIDTH == 32 || HEAD_WIDTH == 64 || HEAD_WIDTH == 128, "the swizzle covers these widths");

// Byte offset of a chunk in a tile. The chunk is permuted by the row, so that the eight rows of a
// matrix that ldmatrix reads hit different banks. With four chunks a row, two rows share the 128
// bytes of all banks, and the pair permutes.
__device__ __forceinline__ u32 swizzle(int row, int chunk) {
    const int permutation = ROW_CHUNKS >= 8 ? row & 7 : (row >> 1) & 3;
    return (row * ROW_CHUNKS + (chunk ^ permutation)) * CHUNK_BYTES;
}

// Copies a tile of 64 rows of one head to shared memory. Rows beyond the sequence become zero.
__device__ __forceinline__ void copy_tile(u32 target, const u16* head, u64 row_stride, int first_row, int length) {
#pragma unroll
    for (int i = 0; i < KEY_ROWS * ROW_CHUNKS / THREADS; i++) {
        const int id = threadIdx.x + i * THREADS;
        const int row = id / ROW_CHUNKS;
        const int chunk = id % ROW_CHUNKS;
        const bool valid = first_row + row < length;
        // The address of an invalid row is not read, but it has to be a valid one.
        const u64 sequence_row = valid ? first_row + row : 0;
        copy_async(target + swizzle(row, chunk), head + sequence_row * row_stride + chunk * CHUNK, valid);
    }
}

// Maximum over the four lanes that hold a row of scores.
__device__ __forceinline__ float max_of_row(float value) {
    value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, 1));
    return fmaxf(value, __shfl_xor_sync(FULL_WARP, value, 2));
}

// Sum over the four lanes that hold a row of scores.
__device__ __forceinline__ float sum_of_row(float value) {
    value += __shfl_xor_sync(FULL_WARP, value, 1);
    return value + __shfl_xor_sync(FULL_WARP, value, 2);
}

// State of the online softmax of the two rows that a lane holds in a 16x8 fragment: its own row
// (index 0) and the row 8 below (index 1).
struct SoftmaxState {
    float maximum[2];
    float sum[2];
};

// Computes the scores of 16 queries and 64 keys.
__device__ __forceinline__ void multiply_keys(float (&scores)[KEY_ROWS / 8][4], const u32 (&query)[HEAD_WIDTH / 16][4],
                                              u32 keys, int lane) {
#pragma unroll
    for (int i = 0; i < KEY_ROWS / 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) scores[i][j] = 0.0f;
    }
#pragma unroll
    for (int k = 0; k < HEAD_WIDTH / 16; k++) {
#pragma unroll
        for (int i = 0; i < KEY_ROWS / 16; i++) {
            u32 b[4];
            load_matrices(b, keys + swizzle(i * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
            multiply_accumulate(scores[2 * i], query[k], b[0], b[1]);
            multiply_accumulate(scores[2 * i + 1], query[k], b[2], b[3]);
        }
    }
}

// Excludes keys beyond the end of the sequence.
__device__ __forceinline__ void mask_keys(float (&scores)[KEY_ROWS / 8][4], int first_key, int length, int lane) {
#pragma unroll
    for (int i = 0; i < KEY_ROWS / 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int key = first_key + i * 8 + lane % 4 * 2 + j % 2;
            if (key >= length) scores[i][j] = MASKED;
        }
    }
}

// Turns scores into weights relative to the new maximum, and rescales the sums and the output that
// were relative to the previous one. The weights are packed as the left operand of the product with
// the values.
__device__ __forceinline__ void update_softmax(SoftmaxState& state, float (&output)[HEAD_WIDTH / 8][4],
                                               u32 (&weights)[KEY_ROWS / 16][4], float (&scores)[KEY_ROWS / 8][4],
                                               float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float maximum = state.maximum[half];
#pragma unroll
        for (int i = 0; i < KEY_ROWS / 8; i++) {
            maximum = fmaxf(maximum, fmaxf(scores[i][half * 2], scores[i][half * 2 + 1]));
        }
        maximum = max_of_row(maximum);
        const float factor = exp2_approx((state.maximum[half] - maximum) * scale_log2);
        const float shift = maximum * scale_log2;
        state.maximum[half] = maximum;
        state.sum[half] *= factor;
#pragma unroll
        for (int i = 0; i < HEAD_WIDTH / 8; i++) {
            output[i][half * 2] *= factor;
            output[i][half * 2 + 1] *= factor;
        }
#pragma unroll
        for (int i = 0; i < KEY_ROWS / 8; i++) {
            const float first_score = scores[i][half * 2];
            const float second_score = scores[i][half * 2 + 1];
            const float first = exp2_approx(fmaf(first_score, scale_log2, -shift));
            const float second = exp2_approx(fmaf(second_score, scale_log2, -shift));
            // Minus infinity, by a key that exceeds the range, would have the weight zero. Times zero
            // it makes the sum NaN, so that the result is not finite and becomes an error.
            state.sum[half] += fmaf(0.0f, first_score, fmaf(0.0f, second_score, first + second));
            weights[i / 2][i % 2 * 2 + half] = pack_pair(first, second);
        }
    }
}

// Adds the product of the weights and 64 values to the output.
__device__ __forceinline__ void multiply_values(float (&output)[HEAD_WIDTH / 8][4],
                                                const u32 (&weights)[KEY_ROWS / 16][4], u32 values, int lane) {
#pragma unroll
    for (int k = 0; k < KEY_ROWS / 16; k++) {
#pragma unroll
        for (int i = 0; i < HEAD_WIDTH / 16; i++) {
            u32 b[4];
            load_matrices_transposed(b, values + swizzle(k * 16 + lane % 16, i * 2 + lane / 16));
            multiply_accumulate(output[2 * i], weights[k], b[0], b[1]);
            multiply_accumulate(output[2 * i + 1], weights[k], b[2], b[3]);
        }
    }
}

// Divides by the sums of the weights and writes the rows of the sequence.
__device__ __forceinline__ void write_output(u16* out, const float (&output)[HEAD_WIDTH / 8][4],
                                             const SoftmaxState& state, u64 row_stride, int first_row, int length,
                                             int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float inverse = 1.0f / sum_of_row(state.sum[half]);
        const int row = first_row + lane / 4 + half * 8;
        if (row >= length) continue;
#pragma unroll
        for (int i = 0; i < HEAD_WIDTH / 8; i++) {
            const u32 pair = pack_pair(output[i][half * 2] * inverse, output[i][half * 2 + 1] * inverse);
            *(u32*)(out + row * row_stride + i * 8 + lane % 4 * 2) = pair;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    KERNEL_NAME(const u16* __restrict__ qkv, u16* __restrict__ out, const u32* __restrict__ offsets,
                const uint2* __restrict__ tiles, int heads, float scale_log2) {
    extern __shared__ __align__(128) unsigned char shared[];
    const u32 queries = shared_address(shared);
    const u32 keys = queries + QUERY_BYTES;
    const u32 values = keys + 2 * KEY_BYTES;
    const int warp = threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;

    const uint2 tile = tiles[blockIdx.x];
    const int first_query = tile.y;
    const u32 start = offsets[tile.x];
    const int length = offsets[tile.x + 1] - start;
    const u64 width = (u64)heads * HEAD_WIDTH;
    const u64 row_stride = 3 * width;
    const u16* head = qkv + start * row_stride + blockIdx.y * HEAD_WIDTH;

    auto copy_keys = [&](int step) {
        const u32 stage = step % 2 * KEY_BYTES;
        copy_tile(keys + stage, head + width, row_stride, step * KEY_ROWS, length);
        copy_tile(values + stage, head + 2 * width, row_stride, step * KEY_ROWS, length);
        commit_copies();
    };

    // The queries belong to the first group of copies.
    copy_tile(queries, head, row_stride, first_query, length);
    copy_keys(0);

    u32 query[HEAD_WIDTH / 16][4];
    float output[HEAD_WIDTH / 8][4];
#pragma unroll
    for (int i = 0; i < HEAD_WIDTH / 8; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) output[i][j] = 0.0f;
    }
    SoftmaxState state = {{MASKED, MASKED}, {0.0f, 0.0f}};

    const int steps = (length + KEY_ROWS - 1) / KEY_ROWS;
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) {
            copy_keys(step + 1);
            wait_copies<1>();
        } else {
            wait_copies<0>();
        }
        // Makes the copies of all threads visible.
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int k = 0; k < HEAD_WIDTH / 16; k++) {
                load_matrices(query[k], queries + swizzle(warp * 16 + lane % 16, k * 2 + lane / 16));
            }
        }
        const u32 stage = step % 2 * KEY_BYTES;
        float scores[KEY_ROWS / 8][4];
        u32 weights[KEY_ROWS / 16][4];
        multiply_keys(scores, query, keys + stage, lane);
        if ((step + 1) * KEY_ROWS > length) mask_keys(scores, step * KEY_ROWS, length, lane);
        update_softmax(state, output, weights, scores, scale_log2);
        multiply_values(output, weights, values + stage, lane);
        // The next copy overwrites the stage that this step has read.
        __syncthreads();
    }
    write_output(out + start * width + blockIdx.y * HEAD_WIDTH, output, state, width, first_query + warp * 16, length,
                 lane);
}
