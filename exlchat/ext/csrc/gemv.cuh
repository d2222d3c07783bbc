// y = x W for 1 to 8 rows of x: weights stream from memory straight into registers and through the tensor cores.
//
// A block owns a range of column tiles. Its warps split the input rows by bytes, so every warp streams a contiguous
// run of pieces (two tiles, 128 input rows) of mostly one bit width for one column tile after the other, with several
// pieces in flight. Partial sums go to shared memory, each to a slot of its own, and are added in a fixed order at the
// end: the same result every run.
#pragma once
#include "exlchat.h"
#include "tiles.cuh"

namespace exl {

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * LANES;
constexpr int PIECE_ROWS = 128;
constexpr int MAX_WORDS = 36;    // registers of weights in flight
constexpr int MAX_STAGES = 8;
constexpr int SLAB_PIECES = 32;  // 128 input rows each: what several rows of x keep in shared memory at once
constexpr int NO_FEATURE = 65535;

// Shared memory of a block, in bytes from its beginning; made on the host, passed as it is.
struct GemvShape {
    int x_stride;  // halves between two rows of staged x
    int sums;      // float [rows][slab pieces * 4]: sum of x over 32 input rows each
    int maxima;    // half [scales] of the matrix at work
    int natural;   // half [features]: x before it is gathered (one row only)
    int partial;   // float [column tiles at once][slots][16][ROWS]
    int slots;     // per column tile and matrix
    int columns;   // column tiles a block works on at once
    int bytes;
};

// Pieces [piece, piece + pieces) of a section, for every column tile.
struct Run {
    int section, piece, pieces;
};

// What a warp takes of section s inside pieces [first, last) of the input rows: an equal share of their bytes.
__device__ __forceinline__ Run share(const ExlMatrix &m, int s, int first, int last, int warp) {
    int before = 0, total = 0, mine = 0;
    for (int i = 0; i < m.section_count; i++) {
        const int lo = max(m.sections[i].tile / 2, first);
        const int hi = min((m.sections[i].tile + m.sections[i].tiles) / 2, last);
        const int cost = max(hi - lo, 0) * m.sections[i].bits;
        if (i < s) before += cost;
        if (i == s) mine = cost;
        total += cost;
    }
    const ExlSection &section = m.sections[s];
    const int start = max(section.tile / 2, first), count = mine / section.bits;
    auto cut = [&](int w) {  // pieces of this section that belong to warps below w
        const int target = total * w / WARPS - before;
        return min(max((target + section.bits - 1) / section.bits, 0), count);
    };
    const int lo = cut(warp), hi = cut(warp + 1);
    return {s, start + lo, hi - lo};
}

template <int BITS> struct Piece {
    static constexpr int REGISTERS = 2 * BITS;                // of one lane
    static constexpr int WORDS = REGISTERS * LANES;           // in memory
    static constexpr int STAGES = BITS == 8 ? 2 : BITS >= 5 ? 3 : BITS == 4 ? 4 : BITS == 3 ? 6 : 8;
    static_assert(STAGES * REGISTERS <= MAX_WORDS && STAGES <= MAX_STAGES, "");
};

// The scale indices of one piece for this lane's columns: one byte for each EVERY input rows.
template <int EVERY> __device__ __forceinline__ uint32_t load_scales(const uint8_t *p) {
    if constexpr (EVERY == 128) return __ldg(p);
    else if constexpr (EVERY == 64) return __ldg(reinterpret_cast<const uint16_t *>(p));
    else return __ldg(reinterpret_cast<const uint32_t *>(p));
}

// The request side of a warp's stream: pieces of one column tile, then of the next.
template <int BITS, int EVERY> struct Requests {
    const uint32_t *words;
    const uint8_t *scales;
    int left, pieces, word_jump, scale_jump;

    __device__ __forceinline__ Requests(const ExlMatrix &m, const Run &run, int column, int lane) {
        const ExlSection &section = m.sections[run.section];
        const int piece = run.piece - section.tile / 2;
        pieces = left = run.pieces;
        words = m.words + (size_t)column * m.words_per_column + section.word + piece * Piece<BITS>::WORDS;
        scales = m.scale_index + (column * 8 + (lane >> 2)) * m.scales + section.scale + piece * (PIECE_ROWS / EVERY);
        word_jump = m.words_per_column - run.pieces * Piece<BITS>::WORDS;
        scale_jump = 8 * m.scales - run.pieces * (PIECE_ROWS / EVERY);
    }
    __device__ __forceinline__ void next(uint32_t *w, uint32_t &scale, int lane) {
        load_tile<BITS>(w, words, lane);
        load_tile<BITS>(w + BITS, words + BITS * LANES, lane);
        scale = load_scales<EVERY>(scales);
        words += Piece<BITS>::WORDS;
        scales += PIECE_ROWS / EVERY;
        if (--left == 0) left = pieces, words += word_jump, scales += scale_jump;
    }
    __device__ __forceinline__ void skip(int count) {
        const int wraps = count / pieces;
        words += count * Piece<BITS>::WORDS + wraps * word_jump;
        scales += count * (PIECE_ROWS / EVERY) + wraps * scale_jump;
        left = pieces - (count - wraps * pieces);
    }
};

// One block of 32 input rows: two products of 16. H is its number in the piece.
template <int BITS, int H> __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t *w, const half *x) {
    const uint4 b = *reinterpret_cast<const uint4 *>(x + H * 32);
    uint32_t a[4];
    operand<BITS, H % 2 * 2>(a, w + H / 2 * BITS);
    mma(c, a[0], a[1], a[2], a[3], b.x, b.y);
    operand<BITS, H % 2 * 2 + 1>(a, w + H / 2 * BITS);
    mma(c, a[0], a[1], a[2], a[3], b.z, b.w);
}

// Adds EVERY input rows to the sum: the number S of such groups in the piece.
template <int BITS, int EVERY, int S, int ROWS>
__device__ __forceinline__ void group(float (&sum)[4], const uint32_t *w, uint32_t scales, const half *x,
                                      const float *x_sums, int sums_stride, const half *maxima) {
    constexpr int BLOCKS = EVERY / 32;
    constexpr float LOW = -(1024.f + Codes<BITS>::ZERO), HIGH = -(1024.f + Codes<BITS>::UPPER * Codes<BITS>::ZERO);
    float s[2] = {0.f, 0.f};
#pragma unroll
    for (int row = 0; row < (ROWS == 1 ? 1 : 2); row++) {
        const float *p = x_sums + row * sums_stride + S * BLOCKS;
        if constexpr (BLOCKS == 4) {
            const float4 v = *reinterpret_cast<const float4 *>(p);
            s[row] = (v.x + v.y) + (v.z + v.w);
        } else if constexpr (BLOCKS == 2) {
            s[row] = p[0] + p[1];
        } else {
            s[row] = p[0];
        }
    }
    if (ROWS == 1) s[1] = s[0];
    float c[4] = {LOW * s[0], LOW * s[1], HIGH * s[0], HIGH * s[1]};
    multiply<BITS, S * BLOCKS>(c, w, x);
    if constexpr (BLOCKS >= 2) multiply<BITS, S * BLOCKS + 1>(c, w, x);
    if constexpr (BLOCKS == 4) {
        multiply<BITS, 2>(c, w, x);
        multiply<BITS, 3>(c, w, x);
    }
    const float2 scale = scale_pair(scales >> 8 * S, maxima[S]);
    const float upper = scale.y * (1.f / Codes<BITS>::UPPER);
    sum[0] += scale.x * c[0], sum[2] += upper * c[2];
    if (ROWS > 1) sum[1] += scale.x * c[1], sum[3] += upper * c[3];
}

template <int BITS, int EVERY, int ROWS>
__device__ __forceinline__ void piece(float (&sum)[4], const uint32_t *w, uint32_t scales, const half *x,
                                      const float *x_sums, int sums_stride, const half *maxima) {
    group<BITS, EVERY, 0, ROWS>(sum, w, scales, x, x_sums, sums_stride, maxima);
    if constexpr (EVERY <= 64) group<BITS, EVERY, 1, ROWS>(sum, w, scales, x, x_sums, sums_stride, maxima);
    if constexpr (EVERY == 32) {
        group<BITS, EVERY, 2, ROWS>(sum, w, scales, x, x_sums, sums_stride, maxima);
        group<BITS, EVERY, 3, ROWS>(sum, w, scales, x, x_sums, sums_stride, maxima);
    }
}

// Partial sums of one column tile: lane 4 r + q holds columns r and r + 8 of rows 2 q and 2 q + 1 of x.
template <int ROWS> __device__ __forceinline__ void store_partial(float *slot, const float (&sum)[4], int lane) {
    const int r = lane >> 2, q = lane & 3;
    if (ROWS == 1) {
        if (q == 0) slot[r] += sum[0], slot[r + 8] += sum[2];
    } else {
        float2 *low = reinterpret_cast<float2 *>(slot + r * ROWS + q * 2);
        float2 *high = reinterpret_cast<float2 *>(slot + (r + 8) * ROWS + q * 2);
        low->x += sum[0], low->y += sum[1], high->x += sum[2], high->y += sum[3];
    }
}

}  // namespace exl
