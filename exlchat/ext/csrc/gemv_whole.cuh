// Pieces of which a column has one scale, 128 rows: 1 to 8 rows of x at the price of one.
//
// The eight columns of the tensor cores' second operand hold the rows of x, over and over where they are fewer, and all
// blocks of 32 inputs are added up there before they are scaled. What a column comes to does not depend on the others, so
// a row is the same to the last bit however many there are. Even and odd 16 inputs of a block in sums of their own, which
// do not wait for each other.
#pragma once
#include "gemv_scale.cuh"

namespace exl {

// Of a lane: columns r (low) and r + 8 (high) of the tile, for rows 2 q and 2 q + 1 of x.
template <int ROWS> struct WholeSum {
    static constexpr int EACH = ROWS == 1 ? 1 : 2;
    float low[EACH] = {}, high[EACH] = {};
};

// What a lane needs for a piece beside x.
template <int BITS, bool PLAIN, int ROWS> struct WholePiece {
    static constexpr int EACH = WholeSum<ROWS>::EACH;
    uint32_t w[2 * BITS];
    OneScale<BITS, PLAIN> one;
    float s[EACH];  // sums of x

    __device__ __forceinline__ WholePiece(const char *codes, const char *scales, const float *sums, int lane) {
        const uint32_t *tiles = reinterpret_cast<const uint32_t *>(codes);
        load_tile<BITS>(w, tiles, lane);
        load_tile<BITS>(w + BITS, tiles + BITS * LANES, lane);
        const ScalePlace place = ScalePlace::of_block<PLAIN>(Segment::WHOLE, lane, 0);
        one = OneScale<BITS, PLAIN>(scales + place.value, scales + place.byte);
#pragma unroll
        for (int i = 0; i < EACH; i++) s[i] = sums[i];
    }
    template <int B>
    __device__ __forceinline__ void multiply_block(float (&even)[4], float (&odd)[4], const half *x) const {
        uint32_t a[4];
        const uint4 part = *reinterpret_cast<const uint4 *>(x + B * 32);
        row_operand<BITS, B % 2 * 2>(a, w + B / 2 * BITS);
        mma(even, a[0], a[1], a[2], a[3], part.x, part.y);
        row_operand<BITS, B % 2 * 2 + 1>(a, w + B / 2 * BITS);
        mma(odd, a[0], a[1], a[2], a[3], part.z, part.w);
    }
    __device__ __forceinline__ void multiply(WholeSum<ROWS> &sum, const half *x) const {
        float even[4] = {}, odd[4] = {};
        multiply_block<0>(even, odd, x);
        multiply_block<1>(even, odd, x);
        multiply_block<2>(even, odd, x);
        multiply_block<3>(even, odd, x);
        const float2 scale = one.scale(), offset = one.offset();
#pragma unroll
        for (int i = 0; i < EACH; i++)
            add_block<BITS>(sum.low[i], sum.high[i], scale, offset, even[i] + odd[i], even[2 + i] + odd[2 + i], s[i]);
    }
};

// x: the lane's row and its part of 32 inputs; x_wholes: of its first row.
struct WholeWork {
    const half *x;
    const float *x_wholes;
};

// To a warp's sums of one column tile: each by the first lane that has it.
template <int ROWS> __device__ __forceinline__ void add_sum(float *to, const WholeSum<ROWS> &sum, int lane) {
    const int column = lane >> 2, row = lane % 4 * 2;
    if (row >= ROWS) return;
    if constexpr (ROWS == 1) {
        to[column] += sum.low[0], to[column + 8] += sum.high[0];
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to[sum_place(column, row + i)] += sum.low[i], to[sum_place(column + 8, row + i)] += sum.high[i];
    }
}

// Segments of one width, as many as there are; `list` goes on behind them. column_floats: from the sums of a column to those of
// the next.
template <int BITS, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run_whole(Ring<DEPTH> &ring, const Segment *&list, const WholeWork &work, float *sums_of_warp,
                                          int column_floats) {
    constexpr int EACH = BITS > 4 ? 1 : 2;
    using Piece = WholePiece<BITS, PLAIN, ROWS>;
    Segment segment = *list;
    const int width = segment.width();
    do {
        const half *x = work.x + segment.x_block() * 32;
        const float *sums = work.x_wholes + segment.x_block() * ROWS;
        const int scale_bytes = segment.scale_bytes();
        WholeSum<ROWS> sum;
#pragma unroll 1
        for (int left = segment.pieces(); left > 0;
             left -= EACH, x += EACH * PIECE_ROWS, sums += EACH * PIECE_ROWS / 32 * ROWS) {
            ring.wait();
            const char *codes = ring.base + ring.slot, *scales = ring.base + ring.scale_slot;
            const Piece first(codes, scales, sums, ring.lane);
            if constexpr (EACH == 2) {
                const bool two = left > 1;
                Piece second(codes + (two ? PIECE_BYTES<BITS> : 0), scales + (two ? scale_bytes : 0),
                             sums + (two ? PIECE_ROWS / 32 * ROWS : 0), ring.lane);
                if (!two) second.one.clear();
                ring.go_on();
                first.multiply(sum, x);
                second.multiply(sum, x + (two ? PIECE_ROWS : 0));
            } else {
                ring.go_on();
                first.multiply(sum, x);
            }
        }
        add_sum<ROWS>(sums_of_warp + segment.column() * column_floats, sum, ring.lane);
        segment = *++list;
    } while (segment.width() == width && segment.is_whole() && segment.pieces());
}

}  // namespace exl
