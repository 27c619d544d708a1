// Types, storage format and instruction wrappers that all kernels share.
//
// The kernels are compiled by NVRTC without the headers of the CUDA toolkit, so conversions and
// tensor-core instructions are written as inline PTX (PTX ISA 8.4). All of them exist on compute
// capability 8.0 and later.
//
// Weights and activations are stored in 16 bits: bfloat16, or IEEE half precision where
// STORAGE_F16 is defined. Arithmetic is f32 everywhere.
//
// The compiler runs with --fmad=false: it may not fuse a product and a sum, and neither may the
// driver, which the PTX obliges by .rn (PTX ISA 8.4, "fma", "add"). Where one rounding is wanted,
// the source calls fmaf. So two kernels with one formula compute the same bits.
//
// The header of each kernel lists under `Host` what its caller has to refuse with an error, since
// the kernel does not check it. The manifest has the limits of single parameters (`limits`).
//
// Constants are enumerators and macros: NVRTC emits a global variable for each `constexpr` one.

#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum : int { WARP_SIZE = 32 };
enum : u32 { FULL_WARP = 0xffffffffu };
// Values of 16 bits in one 16-byte access, the widest that a thread makes.
enum : int { CHUNK = 8 };
enum : int { CHUNK_BYTES = 16 };
#define LOG2_E 1.44269504088896f

// Returns the value in the lower half of a pair.
__device__ __forceinline__ float low_half(u32 pair) {
#ifdef STORAGE_F16
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)pair));
    return value;
#else
    return __uint_as_float(pair << 16);
#endif
}

// Returns the value in the upper half of a pair.
__device__ __forceinline__ float high_half(u32 pair) {
#ifdef STORAGE_F16
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)(pair >> 16)));
    return value;
#else
    return __uint_as_float(pair & 0xffff0000u);
#endif
}

// Rounds two values to the storage format (to nearest, ties to even).
__device__ __forceinline__ u32 pack_pair(float low, float high) {
    u32 pair;
#ifdef STORAGE_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// Reads a chunk of 8 values.
__device__ __forceinline__ void read_chunk(float (&values)[CHUNK], const u16* source) {
    const uint4 data = *(const uint4*)source;
    const u32 pairs[4] = {data.x, data.y, data.z, data.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = low_half(pairs[i]);
        values[2 * i + 1] = high_half(pairs[i]);
    }
}

// Rounds and writes a chunk of 8 values.
__device__ __forceinline__ void write_chunk(u16* target, const float (&values)[CHUNK]) {
    uint4 data;
    data.x = pack_pair(values[0], values[1]);
    data.y = pack_pair(values[2], values[3]);
    data.z = pack_pair(values[4], values[5]);
    data.w = pack_pair(values[6], values[7]);
    *(uint4*)target = data;
}

// 2^x with a relative error of 2^-22; subnormal results become zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x with a relative error of 2^-23.
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Sums over the warp by a butterfly, so all lanes receive the same bits.
__device__ __forceinline__ float sum_warp(float value) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, distance);
    }
    return value;
}

// === Asynchronous copies and tensor cores ===

// Address of a shared-memory object in the shared window, as cp.async and ldmatrix take it.
__device__ __forceinline__ u32 shared_address(const void* object) {
    return (u32)__cvta_generic_to_shared(object);
}

// Starts an asynchronous copy of 16 bytes from global to shared memory. Where `valid` is false,
// nothing is read and 16 zero bytes are written.
__device__ __forceinline__ void copy_async(u32 target, const void* source, bool valid) {
    const int bytes = valid ? CHUNK_BYTES : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes));
}

// Closes the group of copies that this thread has started since the last call.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;");
}

// Waits until at most PENDING groups of this thread are incomplete.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

// Loads four 8x8 matrices of 16-bit values. Lanes 8i to 8i+7 give the addresses of the rows of
// matrix i.
__device__ __forceinline__ void load_matrices(u32 (&registers)[4], u32 row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(row_address));
}

// As load_matrices, and transposes each matrix.
__device__ __forceinline__ void load_matrices_transposed(u32 (&registers)[4], u32 row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
                 : "r"(row_address));
}

#ifdef STORAGE_F16
#define MMA_TYPES "f32.f16.f16.f32"
#else
#define MMA_TYPES "f32.bf16.bf16.f32"
#endif

// c[16x8] += a[16x16] * b[16x8] on the tensor cores, in the fragment layout of mma.m16n8k16.
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
