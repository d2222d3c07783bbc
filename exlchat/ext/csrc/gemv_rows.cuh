// Up to ROWS rows of x times a warp's segments.
#pragma once
#include "gemv.cuh"

namespace exl {

// What a lane adds up, r and q being its row and column in the fragments: columns r and r + 8 of the tile with x rows 2 q
// and 2 q + 1.
struct RowsSum {
    float c[4] = {0.f, 0.f, 0.f, 0.f};
};

// 32 input rows: two products of 16. H is their number in the piece.
template <int BITS, int H> __device__ __forceinline__ void multiply(float (&c)[4], const uint32_t *w, const half *x) {
    const uint4 b = *reinterpret_cast<const uint4 *>(x + H * 32);
    uint32_t a[4];
    operand<BITS, H % 2 * 2>(a, w + H / 2 * BITS);
    mma(c, a[0], a[1], a[2], a[3], b.x, b.y);
    operand<BITS, H % 2 * 2 + 1>(a, w + H / 2 * BITS);
    mma(c, a[0], a[1], a[2], a[3], b.z, b.w);
}

// Group number S of a piece times up to eight rows of x. x and sums point to the lane's rows.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int S>
__device__ __forceinline__ void multiply_group(RowsSum &sum, const uint32_t *w, const char *scales, const half *x,
                                               const float *sums, int r) {
    constexpr int BLOCKS = EVERY / 32, FIRST = S * BLOCKS;
    constexpr int COUNT = 128 / EVERY;
    const OneScale<BITS, PLAIN> one(scales + (PLAIN ? (S * 8 + r) * 4 : 8 * COUNT + 2 * S),
                                    scales + (PLAIN ? 32 * COUNT : 0) + r * COUNT + S);
    float2 s = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const float2 v = *reinterpret_cast<const float2 *>(sums + (FIRST + i) * ROWS);
        s.x += v.x, s.y += v.y;
    }
    const float2 scale = one.scale(), offset = one.offset();
    float c[4] = {offset.x * s.x, offset.x * s.y, offset.y * s.x, offset.y * s.y};
    multiply<BITS, FIRST>(c, w, x);
    if constexpr (BLOCKS >= 2) multiply<BITS, FIRST + 1>(c, w, x);
    if constexpr (BLOCKS == 4) {
        multiply<BITS, FIRST + 2>(c, w, x);
        multiply<BITS, FIRST + 3>(c, w, x);
    }
    const float lower = scale.x * (1.f / Codes<BITS>::LOWER), upper = scale.y * (1.f / Codes<BITS>::UPPER);
    sum.c[0] += lower * c[0], sum.c[1] += lower * c[1], sum.c[2] += upper * c[2], sum.c[3] += upper * c[3];
}

// A piece times up to eight rows of x.
template <int BITS, int EVERY, bool PLAIN, int ROWS>
__device__ __forceinline__ void multiply_rows(RowsSum &sum, const uint32_t *piece, const char *scales, const half *x,
                                              const float *sums, int lane) {
    uint32_t w[2 * BITS];
    load_tile<BITS>(w, piece, lane);
    load_tile<BITS>(w + BITS, piece + BITS * LANES, lane);
    const int r = lane >> 2;
    multiply_group<BITS, EVERY, PLAIN, ROWS, 0>(sum, w, scales, x, sums, r);
    if constexpr (EVERY <= 64) multiply_group<BITS, EVERY, PLAIN, ROWS, 1>(sum, w, scales, x, sums, r);
    if constexpr (EVERY == 32) {
        multiply_group<BITS, EVERY, PLAIN, ROWS, 2>(sum, w, scales, x, sums, r);
        multiply_group<BITS, EVERY, PLAIN, ROWS, 3>(sum, w, scales, x, sums, r);
    }
}

// To a warp's sums of one column tile: [16][ROWS].
template <int ROWS> __device__ __forceinline__ void add_sum(float *to, RowsSum &sum, int lane) {
    const int r = lane >> 2, q = lane & 3;
    float2 *low = reinterpret_cast<float2 *>(to + r * ROWS + q * 2), *high = low + 4 * ROWS;
    *low = {low->x + sum.c[0], low->y + sum.c[1]};
    *high = {high->x + sum.c[2], high->y + sum.c[3]};
    sum = RowsSum();
}

// Segments of one kind, as many as there are.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run(Ring<DEPTH> &ring, Work<RowsSum> &work) {
    static_assert(DEPTH > 1, "the slot is read after the ring has gone on");
    constexpr int EACH = BITS > 4 ? 1 : 2;
    Segment segment = *work.list;
    const int kind = segment.kind();
    do {
        const half *x = work.x + segment.x_block() * 32;
        const float *sums = work.x_sums + segment.x_block() * ROWS;
        int left = segment.pieces();
#pragma unroll 1
        while (left > 0) {
            ring.wait();
            const char *codes = ring.base + ring.slot, *scales = ring.base + ring.scale_slot;
            ring.go_on();
            const int end = max(left - EACH, 0);
#pragma unroll 1
            for (; left > end; left--, x += PIECE_ROWS, sums += PIECE_ROWS / 32 * ROWS) {
                multiply_rows<BITS, EVERY, PLAIN, ROWS>(work.sum, reinterpret_cast<const uint32_t *>(codes), scales, x, sums,
                                                        ring.lane);
                codes += PIECE_BYTES<BITS>, scales += segment.scale_bytes();
            }
        }
        add_sum<ROWS>(work.sums + segment.column() * WARPS * 16 * ROWS, work.sum, ring.lane);
        segment = *++work.list;
    } while (segment.kind() == kind && segment.pieces());
}

// Calls F(bits, rows a scale, plain) for a kind.
#define EXL_THREE(N, F, BITS, PLAIN)               \
    case 4 * (N): F(BITS, 32, PLAIN); break;       \
    case 4 * (N) + 1: F(BITS, 64, PLAIN); break;   \
    case 4 * (N) + 2: F(BITS, 128, PLAIN); break;
#define EXL_FOR_KIND(kind, F)                                                         \
    switch (kind) {                                                                   \
        EXL_THREE(0, F, 2, false) EXL_THREE(1, F, 3, false) EXL_THREE(2, F, 4, false) \
        EXL_THREE(3, F, 5, false) EXL_THREE(4, F, 6, false) EXL_THREE(5, F, 8, false) \
        EXL_THREE(6, F, 4, true)                                                      \
    }

// All segments of a warp. x is the lane's, x_sums and sums the warp's.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void multiply_rows(const Segment *list, Ring<DEPTH> &ring, const half *x, const float *x_sums,
                                              float *sums) {
    Work<RowsSum> work = {list, x, x_sums + (ring.lane & 3) * 2, sums};
    while (work.list->pieces()) {
#define EXL_RUN(BITS, EVERY, PLAIN) run<BITS, EVERY, PLAIN, ROWS>(ring, work)
        EXL_FOR_KIND(work.list->kind(), EXL_RUN)
#undef EXL_RUN
    }
}

}  // namespace exl
