// Embedding of tokens: gathers the word, position and type vectors of each token, adds them and
// normalises the sum.
//
//   out[t] = layer_norm(word[token_ids[t]] + position[positions[t]] + type[type_ids[t]])
//
// Shapes    token_ids, positions, type_ids: [rows] u32, each smaller than the rows of its table
//           (the host verifies this; the kernel does not)
//           word: [vocabulary, width], position: [positions, width], type: [types, width]; a model
//           without token types (DistilBERT) has neither type_ids nor type, and both may be null
//           gamma, beta: [width]; out: [rows, width], which overlaps no input
//           width: a multiple of 8, at most 1024; pointers are aligned to 16 bytes
// Host      refuses another width, an id beyond its table, a word or position table that is absent,
//           and rotary or relative positions, which no kernel computes
// Launch    128 threads, one warp a row; grid: ceil(rows / 4)
// Shared    none
// Source    Devlin et al., "BERT", 2018, section 3.2

#include "layer_norm.cuh"

enum : int { WARPS = 4 };

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE)
    KERNEL_NAME(const u32* __restrict__ token_ids, const u32* __restrict__ positions, const u32* __restrict__ type_ids,
                const u16* __restrict__ word, const u16* __restrict__ position, const u16* __restrict__ type,
                const u16* __restrict__ gamma, const u16* __restrict__ beta, u16* __restrict__ out, int rows, int width,
                float epsilon) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    if (row >= rows) return;

    WarpRow sum;
    clear_row(sum);
    // 64-bit offsets: a vocabulary of 250,000 rows of 1024 values exceeds 2^31 bytes.
    add_row(sum, word + (u64)token_ids[row] * width, width, lane);
    add_row(sum, position + (u64)positions[row] * width, width, lane);
    if (type != nullptr) add_row(sum, type + (u64)type_ids[row] * width, width, lane);
    write_normalized(sum, gamma, beta, out + (u64)row * width, width, epsilon, lane);
}
