// Pieces -> float16 weights in the order of the features, for products with many rows of x.
#include "matrix.cuh"
#include "tiles.cuh"

#include <cuda_runtime.h>

namespace exl {

constexpr int WARPS_A_BLOCK = 4;

// The scales of a piece for columns r and r + 8, and what is to be added to 1024 + LOWER * code and to
// 1024 + UPPER * code before they are multiplied with them. COUNT scales a piece; p points behind its tiles.
template <int BITS, bool PLAIN, int COUNT> struct PieceScales;

template <int BITS, int COUNT> struct PieceScales<BITS, false, COUNT> {
    uint32_t index, maxima[(COUNT + 1) / 2];

    __device__ __forceinline__ void load(const uint32_t *p, int r) {
        const uint8_t *bytes = reinterpret_cast<const uint8_t *>(p);
        if constexpr (COUNT == 4) {
            index = p[r];
            const uint2 m = *reinterpret_cast<const uint2 *>(p + 8);
            maxima[0] = m.x, maxima[1] = m.y;
        } else if constexpr (COUNT == 2) {
            index = reinterpret_cast<const uint16_t *>(p)[r];
            maxima[0] = p[4];
        } else {
            index = bytes[r];
            maxima[0] = *reinterpret_cast<const uint16_t *>(bytes + 8);
        }
    }
    __device__ __forceinline__ float2 scale(int n) const {
        const half2 both = reinterpret_cast<const half2 &>(maxima[n / 2]);
        return indexed_scale(index >> 8 * n, n % 2 ? __high2half(both) : __low2half(both));
    }
    __device__ __forceinline__ float2 offset(int) const {
        return {-(1024.f + Codes<BITS>::LOWER * Codes<BITS>::ZERO), -(1024.f + Codes<BITS>::UPPER * Codes<BITS>::ZERO)};
    }
};

template <int BITS, int COUNT> struct PieceScales<BITS, true, COUNT> {
    uint32_t pairs[COUNT], zeros;

    __device__ __forceinline__ void load(const uint32_t *p, int r) {
#pragma unroll
        for (int n = 0; n < COUNT; n++) pairs[n] = p[n * 8 + r];
        p += COUNT * 8;
        if constexpr (COUNT == 4) zeros = p[r];
        else if constexpr (COUNT == 2) zeros = reinterpret_cast<const uint16_t *>(p)[r];
        else zeros = reinterpret_cast<const uint8_t *>(p)[r];
    }
    __device__ __forceinline__ float2 scale(int n) const {
        return __half22float2(reinterpret_cast<const half2 &>(pairs[n]));
    }
    __device__ __forceinline__ float2 offset(int n) const {
        const uint32_t byte = zeros >> 8 * n;
        return {-(1025.f + (byte & 15u)), -(1024.f + Codes<BITS>::UPPER) - Codes<BITS>::UPPER * (float)(byte >> 4 & 15u)};
    }
};

template <int BITS, int J>
__device__ __forceinline__ void put_operand(half *out, const uint32_t *w, float2 scale, float2 offset, int lane) {
    using C = Codes<BITS>;
    uint32_t a[4];
    operand<BITS, J>(a, w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int b = i / 2, upper = i % 2, r = lane >> 2, q = lane & 3;
        const float2 v = __half22float2(reinterpret_cast<const half2 &>(a[i]));
        const float unit = 1.f / (upper ? C::UPPER : C::LOWER), zero = upper ? offset.y : offset.x, s = upper ? scale.y : scale.x;
        half *p = out + (32 * (J / 2) + 8 * q + 4 * (J % 2) + 2 * b) * 16 + r + 8 * upper;
        p[0] = __float2half_rn((v.x + zero) * unit * s);
        p[16] = __float2half_rn((v.y + zero) * unit * s);
    }
}

template <int BITS, int EVERY, bool PLAIN>
__device__ __forceinline__ void decode(half *out, const uint32_t *piece, const uint32_t *stored, int lane) {
    constexpr int TILES = 2;
    PieceScales<BITS, PLAIN, 128 / EVERY> scales;
    scales.load(stored, lane >> 2);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        uint32_t w[BITS];
        load_tile<BITS>(w, piece + i * BITS * LANES, lane);
        const int low = i * 64 / EVERY, high = (i * 64 + 32) / EVERY;
        put_operand<BITS, 0>(out + i * 1024, w, scales.scale(low), scales.offset(low), lane);
        put_operand<BITS, 1>(out + i * 1024, w, scales.scale(low), scales.offset(low), lane);
        put_operand<BITS, 2>(out + i * 1024, w, scales.scale(high), scales.offset(high), lane);
        put_operand<BITS, 3>(out + i * 1024, w, scales.scale(high), scales.offset(high), lane);
    }
}

// Calls F(bits, rows per scale, plain) for a section.
#define EXL_WIDTH(BITS, F)                                         \
    case BITS:                                                     \
        if (section.rows_per_scale == 128) F(BITS, 128, false);    \
        else if (section.rows_per_scale == 64) F(BITS, 64, false); \
        else F(BITS, 32, false);                                   \
        break;
#define EXL_FOR_SECTION(F)                                                                           \
    if (section.plain) {                                                                             \
        if (section.rows_per_scale == 128) F(4, 128, true);                                          \
        else if (section.rows_per_scale == 64) F(4, 64, true);                                       \
        else F(4, 32, true);                                                                         \
    } else {                                                                                         \
        switch (section.bits) {                                                                      \
            EXL_WIDTH(4, F) EXL_WIDTH(5, F) EXL_WIDTH(6, F)                                          \
            EXL_WIDTH(8, F) EXL_WIDTH(3, F) EXL_WIDTH(2, F)                                          \
        }                                                                                            \
    }

__global__ void __launch_bounds__(WARPS_A_BLOCK *LANES) dequantize(const __grid_constant__ ExlMatrix m, half *weights) {
    __shared__ __align__(16) half rows[WARPS_A_BLOCK][128 * 16];
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int number = blockIdx.x, column = blockIdx.y * WARPS_A_BLOCK + warp;
    if (column >= m.column_tiles) return;
    int i = 0;
    while (number >= m.sections[i].piece + m.sections[i].pieces) i++;
    const ExlSection &section = m.sections[i];
    const int before = number - section.piece, size = 128, row = section.row + before * size;
    const int end = i + 1 < m.section_count ? m.sections[i + 1].row : m.stored, count = min(size, end - row);
    const uint32_t *piece = m.words + (size_t)column * m.words_per_column + section.word + (size_t)before * section.piece_words;
    const uint32_t *scales = m.scales + (size_t)column * m.scale_words_per_column + section.scale + before * section.scale_words;
    half *out = rows[warp];
#define EXL_DECODE(BITS, EVERY, PLAIN) decode<BITS, EVERY, PLAIN>(out, piece, scales, lane)
    EXL_FOR_SECTION(EXL_DECODE)
#undef EXL_DECODE
    __syncwarp();
    for (int k = lane / 2; k < count; k += 16) {
        const int feature = m.gather[row + k];
        if (feature == 65535) continue;
        const uint4 *from = reinterpret_cast<const uint4 *>(out + k * 16) + lane % 2;
        reinterpret_cast<uint4 *>(weights + (size_t)feature * m.column_tiles * 16 + column * 16)[lane % 2] = *from;
    }
}

}  // namespace exl

extern "C" int exl_dequantize(const ExlMatrix *matrix, void *weights, void *stream) {
    if (!matrix || !weights || !exl::matrix_ok(*matrix) || reinterpret_cast<uintptr_t>(weights) % 16) return EXL_BAD_ARGUMENT;
    const dim3 grid(matrix->pieces, (matrix->column_tiles + exl::WARPS_A_BLOCK - 1) / exl::WARPS_A_BLOCK);
    exl::dequantize<<<grid, exl::WARPS_A_BLOCK * exl::LANES, 0, static_cast<cudaStream_t>(stream)>>>(
        *matrix, static_cast<half *>(weights));
    return cudaGetLastError();
}
