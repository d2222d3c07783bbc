// Up to ROWS (2, 4 or 8) rows of x times a warp's segments: of each row the sums that multiply_row gives, to the last bit.
//
// The eight columns of the tensor cores' second operand hold ROWS rows of 8 / ROWS blocks of 32 inputs, the first row of
// all of them, then the second. As for one row, every block gets a product of its even 16 inputs and one of its odd 16
// that begin at zero: blocks that share a fragment are zeros in each other's products, and to add zeros changes nothing.
// What follows is `add_block` of gemv_row.cuh, and the sums of blocks 0, 1, 2 and 3 of a piece are kept apart as there.
// So the tensor cores have as much to do as for one row, and the codes are taken apart once.
#pragma once
#include "gemv_row.cuh"

namespace exl {

template <int ROWS> struct Fragment {
    static_assert(ROWS == 2 || ROWS == 4 || ROWS == 8, "");
    static constexpr int BLOCKS = 8 / ROWS;  // of 32 inputs that share a fragment
    static constexpr int SETS = 4 / BLOCKS;  // of such blocks in a piece

    // Of what a lane adds up: its block in each set, and the first of its two rows.
    __device__ __forceinline__ static int block(int lane) { return lane % 4 * 2 / ROWS; }
    __device__ __forceinline__ static int row(int lane) { return lane % 4 * 2 % ROWS; }
};

// What a lane adds up of its two rows in each set: columns r (low) and r + 8 (high) of the tile.
template <int ROWS> struct RowsSum {
    float low[Fragment<ROWS>::SETS][2] = {}, high[Fragment<ROWS>::SETS][2] = {};
};

// What a lane needs for a piece.
template <int BITS, bool PLAIN, int ROWS> struct RowsPiece {
    using F = Fragment<ROWS>;
    uint32_t w[2 * BITS];
    OneScale<BITS, PLAIN> one[F::SETS];
    float2 s[F::SETS];

    // sums are the lane's.
    __device__ __forceinline__ RowsPiece(const char *codes, const char *scales, int group, const float *sums, int lane) {
        const uint32_t *tiles = reinterpret_cast<const uint32_t *>(codes);
        load_tile<BITS>(w, tiles, lane);
        load_tile<BITS>(w + BITS, tiles + BITS * LANES, lane);
#pragma unroll
        for (int i = 0; i < F::SETS; i++) {
            const int block = i * F::BLOCKS + F::block(lane);
            const ScalePlace place = ScalePlace::of_block<PLAIN>(group, lane, block);
            one[i] = OneScale<BITS, PLAIN>(scales + place.value, scales + place.byte);
            s[i] = *reinterpret_cast<const float2 *>(sums + block * ROWS);
        }
    }
    // Weights of nothing.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < F::SETS; i++) one[i].clear();
    }
    template <int B>
    __device__ __forceinline__ void multiply_block(float (&even)[4], float (&odd)[4], const uint4 (&x)[4]) const {
        uint32_t a[4];
        row_operand<BITS, B % 2 * 2>(a, w + B / 2 * BITS);
        mma(even, a[0], a[1], a[2], a[3], x[B].x, x[B].y);
        row_operand<BITS, B % 2 * 2 + 1>(a, w + B / 2 * BITS);
        mma(odd, a[0], a[1], a[2], a[3], x[B].z, x[B].w);
    }
    template <int SET> __device__ __forceinline__ void multiply_set(RowsSum<ROWS> &sum, const uint4 (&x)[4]) const {
        constexpr int FIRST = SET * F::BLOCKS;
        float even[4] = {}, odd[4] = {};
        multiply_block<FIRST>(even, odd, x);
        if constexpr (F::BLOCKS >= 2) multiply_block<FIRST + 1>(even, odd, x);
        if constexpr (F::BLOCKS == 4) {
            multiply_block<FIRST + 2>(even, odd, x);
            multiply_block<FIRST + 3>(even, odd, x);
        }
        const float2 scale = one[SET].scale(), offset = one[SET].offset();
        add_block<BITS>(sum.low[SET][0], sum.high[SET][0], scale, offset, even[0] + odd[0], even[2] + odd[2], s[SET].x);
        add_block<BITS>(sum.low[SET][1], sum.high[SET][1], scale, offset, even[1] + odd[1], even[3] + odd[3], s[SET].y);
    }
    __device__ __forceinline__ void multiply(RowsSum<ROWS> &sum, const uint4 (&x)[4]) const {
        multiply_set<0>(sum, x);
        if constexpr (F::SETS >= 2) multiply_set<1>(sum, x);
        if constexpr (F::SETS == 4) {
            multiply_set<2>(sum, x);
            multiply_set<3>(sum, x);
        }
    }
};

template <int ROWS> struct RowsWork : Work<RowsSum<ROWS>> {
    int column_floats;    // from the sums of a column to those of the next
    uint4 parts[4] = {};  // of x, for a piece: the lane's, zeros where it has none

    __device__ __forceinline__ void load(const half *x, int lane) {
#pragma unroll
        for (int i = 0; i < 4; i++) load16_if(lane / (4 * ROWS) == i % Fragment<ROWS>::BLOCKS, parts[i], x + i * 32);
    }
};

// Where a row of a column stands among the sums of a warp and a column tile: columns side by side, and turned about so that
// neither those who add to two rows of eight columns each nor those who read whole rows get in each other's way.
__device__ __forceinline__ int sum_place(int column, int row) {
    return (row ^ (row >> 2 & 1)) * 16 + (column ^ (row >> 1 & 1) * 8);
}

// To a warp's sums of one column tile: ((block 0 + block 1) + (block 2 + block 3)), as the lanes of one row add them up.
template <int ROWS> __device__ __forceinline__ void add_sum(float *to, RowsSum<ROWS> &sum, int lane) {
    const int column = lane >> 2, row = Fragment<ROWS>::row(lane);
    if constexpr (ROWS == 8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[sum_place(column, row + i)] += (sum.low[0][i] + sum.low[1][i]) + (sum.low[2][i] + sum.low[3][i]);
            to[sum_place(column + 8, row + i)] += (sum.high[0][i] + sum.high[1][i]) + (sum.high[2][i] + sum.high[3][i]);
        }
    } else if constexpr (ROWS == 4) {
        float *mine = to + sum_place(column + (lane & 2) * 4, row), *next = to + sum_place(column + (lane & 2) * 4, row + 1);
        const float before = *mine, before_next = *next;
        float all[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            all[i] = with_other(sum.low[0][i], sum.high[0][i], 2, lane) + with_other(sum.low[1][i], sum.high[1][i], 2, lane);
        *mine = before + all[0], *next = before_next + all[1];
    } else {
        float *mine = to + sum_place(column + (lane & 1) * 8, lane >> 1 & 1);
        const float before = *mine;
        const float first = with_other(sum.low[0][0], sum.high[0][0], 1, lane), second = with_other(sum.low[0][1], sum.high[0][1], 1, lane);
        *mine = before + with_other(first, second, 2, lane);
    }
    sum = RowsSum<ROWS>();
}

// Segments of one width, as many as there are.
template <int BITS, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run(Ring<DEPTH> &ring, RowsWork<ROWS> &work) {
    static_assert(DEPTH > 1, "the slot is read after the ring has gone on");
    constexpr int EACH = BITS > 4 ? 1 : 2;
    // Both pieces of a step are loaded before one is multiplied, where the registers hold them.
    constexpr bool TOGETHER = EACH == 2 && ROWS == 2;
    Segment segment = *work.list;
    const int width = segment.width();
    do {
        const int group = segment.group(), scale_bytes = segment.scale_bytes();
        const half *x = work.x + segment.x_block() * 32;
        const float *sums = work.x_sums + segment.x_block() * ROWS;
        using Piece = RowsPiece<BITS, PLAIN, ROWS>;
        int left = segment.pieces();
#pragma unroll 1
        while (left > 0) {
            if constexpr (TOGETHER) work.load(x, ring.lane);
            ring.wait();
            const char *codes = ring.base + ring.slot, *scales = ring.base + ring.scale_slot;
            if constexpr (TOGETHER) {
                const bool two = left > 1;
                const Piece first(codes, scales, group, sums, ring.lane);
                Piece second(codes + (two ? PIECE_BYTES<BITS> : 0), scales + (two ? scale_bytes : 0), group,
                             sums + (two ? PIECE_ROWS / 32 * ROWS : 0), ring.lane);
                if (!two) second.clear();
                ring.go_on();
                first.multiply(work.sum, work.parts);
                work.load(x + (two ? PIECE_ROWS : 0), ring.lane);
                second.multiply(work.sum, work.parts);
                left -= EACH, x += EACH * PIECE_ROWS, sums += EACH * PIECE_ROWS / 32 * ROWS;
            } else {
                ring.go_on();
                const int end = max(left - EACH, 0);
#pragma unroll 1
                for (; left > end; left--, x += PIECE_ROWS, sums += PIECE_ROWS / 32 * ROWS) {
                    work.load(x, ring.lane);
                    const Piece piece(codes, scales, group, sums, ring.lane);
                    piece.multiply(work.sum, work.parts);
                    codes += PIECE_BYTES<BITS>, scales += scale_bytes;
                }
            }
        }
        add_sum<ROWS>(work.sums + segment.column() * work.column_floats, work.sum, ring.lane);
        segment = *++work.list;
    } while (segment.width() == width && segment.pieces());
}

// All segments of a warp. x is the lane's, x_sums and sums the warp's.
template <int ROWS, int DEPTH>
__device__ __forceinline__ void multiply_rows(const Segment *list, Ring<DEPTH> &ring, const half *x, const float *x_sums,
                                              float *sums, int column_floats) {
    RowsWork<ROWS> work = {{list, x, x_sums + Fragment<ROWS>::row(ring.lane), sums}, column_floats};
    while (work.list->pieces()) {
#define EXL_RUN(BITS, PLAIN) run<BITS, PLAIN, ROWS>(ring, work)
        EXL_FOR_WIDTH(work.list->width(), EXL_RUN)
#undef EXL_RUN
    }
}

}  // namespace exl
