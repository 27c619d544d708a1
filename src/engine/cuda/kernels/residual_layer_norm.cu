// Residual connection and layer normalisation.
//
//   out[r] = layer_norm(input[r] + residual[r])
//
// Shapes    input, residual, out: [rows, width]; out overlaps no input. `residual` may be null, for
//           an input to which a GEMM has added the residual.
//           gamma, beta: [width]
//           width: a multiple of 8, at most 1024; pointers are aligned to 16 bytes
// Host      refuses another width (the registers of a warp hold no more), and an out that is also
//           an input: inputs are read through the cache for read-only data
// Launch    128 threads, one warp a row; grid: ceil(rows / 4)
// Shared    none
// Source    Ba, Kiros, Hinton, "Layer Normalization", 2016

#include "layer_norm.cuh"

enum : int { WARPS = 4 };

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE)
    KERNEL_NAME(const u16* __restrict__ input, const u16* __restrict__ residual, const u16* __restrict__ gamma,
                const u16* __restrict__ beta, u16* __restrict__ out, int rows, int width, float epsilon) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    if (row >= rows) return;

    WarpRow sum;
    clear_row(sum);
    add_row(sum, input + (u64)row * width, width, lane);
    if (residual != nullptr) add_row(sum, residual + (u64)row * width, width, lane);
    write_normalized(sum, gamma, beta, out + (u64)row * width, width, epsilon, lane);
}
