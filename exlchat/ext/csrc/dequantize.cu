// Tiles -> float16 weights in the order of the features, for products with many rows of x.
#include "exlchat.h"
#include "tiles.cuh"

#include <cuda_runtime.h>

namespace exl {

constexpr int WARPS_A_BLOCK = 4;

template <int BITS, int J>
__device__ __forceinline__ void put_operand(half *out, const uint32_t *w, const float2 (&scale)[2], int lane) {
    using C = Codes<BITS>;
    uint32_t a[4];
    operand<BITS, J>(a, w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int b = i / 2, upper = i % 2, r = lane >> 2, q = lane & 3;
        const float2 v = __half22float2(reinterpret_cast<const half2 &>(a[i]));
        const float unit = upper ? 1.f / C::UPPER : 1.f, s = upper ? scale[J / 2].y : scale[J / 2].x;
        half *p = out + (32 * (J / 2) + 8 * q + 4 * (J % 2) + 2 * b) * 16 + r + 8 * upper;
        p[0] = __float2half_rn(((v.x - 1024.f) * unit - C::ZERO) * s);
        p[16] = __float2half_rn(((v.y - 1024.f) * unit - C::ZERO) * s);
    }
}

template <int BITS>
__device__ __forceinline__ void decode(half *out, const ExlMatrix &m, const ExlSection &section, int column, int tile,
                                       int lane) {
    uint32_t w[BITS];
    load_tile<BITS>(w, m.words + (size_t)column * m.words_per_column + section.word + (size_t)tile * BITS * LANES, lane);
    const uint8_t *index = m.scale_index + ((size_t)column * 8 + (lane >> 2)) * m.scales + section.scale;
    const half *maximum = static_cast<const half *>(m.scale_max) + section.scale;
    float2 scale[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int at = (tile * 64 + h * 32) / section.rows_per_scale;
        scale[h] = scale_pair(index[at], maximum[at]);
    }
    put_operand<BITS, 0>(out, w, scale, lane);
    put_operand<BITS, 1>(out, w, scale, lane);
    put_operand<BITS, 2>(out, w, scale, lane);
    put_operand<BITS, 3>(out, w, scale, lane);
}

__global__ void __launch_bounds__(WARPS_A_BLOCK *LANES) dequantize(const __grid_constant__ ExlMatrix m, half *weights) {
    __shared__ __align__(16) half tiles[WARPS_A_BLOCK][64 * 16];
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int tile = blockIdx.x, column = blockIdx.y * WARPS_A_BLOCK + warp;
    if (column >= m.column_tiles) return;
    int s = 0;
    while (tile >= m.sections[s].tile + m.sections[s].tiles) s++;
    const ExlSection &section = m.sections[s];
    half *out = tiles[warp];
    switch (section.bits) {
        case 8: decode<8>(out, m, section, column, tile - section.tile, lane); break;
        case 6: decode<6>(out, m, section, column, tile - section.tile, lane); break;
        case 5: decode<5>(out, m, section, column, tile - section.tile, lane); break;
        case 4: decode<4>(out, m, section, column, tile - section.tile, lane); break;
        case 3: decode<3>(out, m, section, column, tile - section.tile, lane); break;
        case 2: decode<2>(out, m, section, column, tile - section.tile, lane); break;
    }
    __syncwarp();
    for (int row = lane / 2; row < 64; row += 16) {
        const int feature = m.gather[tile * 64 + row];
        if (feature == 65535) continue;
        const uint4 *from = reinterpret_cast<const uint4 *>(out + row * 16) + lane % 2;
        reinterpret_cast<uint4 *>(weights + (size_t)feature * m.column_tiles * 16 + column * 16)[lane % 2] = *from;
    }
}

}  // namespace exl

extern "C" int exl_dequantize(const ExlMatrix *matrix, void *weights, void *stream) {
    if (!matrix || !weights || !matrix->words || matrix->section_count < 1 || matrix->column_tiles < 1)
        return EXL_BAD_ARGUMENT;
    const dim3 grid(matrix->tiles, (matrix->column_tiles + exl::WARPS_A_BLOCK - 1) / exl::WARPS_A_BLOCK);
    exl::dequantize<<<grid, exl::WARPS_A_BLOCK * exl::LANES, 0, static_cast<cudaStream_t>(stream)>>>(
        *matrix, static_cast<half *>(weights));
    return cudaGetLastError();
}
