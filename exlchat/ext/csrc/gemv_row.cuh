// One row of x times a warp's segments.
//
// The eight columns of the tensor cores' second operand hold eight parts of x, 16 rows each, where several rows of x
// would stand: two registers for 128 rows. Of each product one column is wanted, that of the 16 rows it has multiplied;
// blocks of 32 rows other than its own are zero, so that two sums are enough: in column 2 q the even product of block q,
// in column 2 q + 1 the odd one.
//
// How many rows a scale has is a number at run time: with code for each of the three, the kernels of a step came to more
// than an instruction cache holds, and waited for their instructions.
#pragma once
#include "gemv.cuh"

namespace exl {

// What a lane adds up: columns r (low) and r + 8 (high) of the tile, over the blocks of 32 rows that fall to its q.
struct RowSum {
    float low = 0.f, high = 0.f;
};

// A lane's scale of a piece: where it stands in the piece's scales, in bytes.
struct ScalePlace {
    int value, byte;

    template <bool PLAIN> __device__ __forceinline__ static ScalePlace of_block(int group, int lane, int block) {
        const int r = lane >> 2, g = block >> group, count = 4 >> group;
        if constexpr (PLAIN) return {(g * 8 + r) * 4, 32 * count + r * count + g};
        else return {8 * count + 2 * g, r * count + g};
    }
};

// What 32 rows of x add to the sums of columns r and r + 8: `low` and `both` are products of x with 1024 + the codes as
// row_operand makes them, s is the sum of x. Rounded step by step, so that no compiler makes another number of it in
// another kernel.
template <int BITS>
__device__ __forceinline__ void add_block(float &low_sum, float &high_sum, float2 scale, float2 offset, float low,
                                          float both, float s) {
    const float lower = __fmaf_rn(offset.x, s, low);
    const float upper = BITS == 4 ? __fmaf_rn(offset.y + 1024.f, s, both - low) : __fmaf_rn(offset.y, s, both);
    low_sum = __fmaf_rn(scale.x * (1.f / Codes<BITS>::LOWER), lower, low_sum);
    high_sum = __fmaf_rn(scale.y * (1.f / Codes<BITS>::UPPER), upper, high_sum);
}

// What a lane needs for a piece times one row of x.
template <int BITS, bool PLAIN> struct RowPiece {
    uint32_t w[2 * BITS];
    OneScale<BITS, PLAIN> one;
    float s;

    // x and sums are the lane's, parts holds zeros where the lane has none.
    __device__ __forceinline__ RowPiece(uint2 (&parts)[4], const char *codes, const char *scales, const ScalePlace &place,
                                        const half *x, const float *sums, int lane)
        : one(scales + place.value, scales + place.byte), s(*sums) {
        const uint32_t *tiles = reinterpret_cast<const uint32_t *>(codes);
        load_tile<BITS>(w, tiles, lane);
        load_tile<BITS>(w + BITS, tiles + BITS * LANES, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) load8_if(lane / 8 == i, parts[i], x);
    }
    __device__ __forceinline__ void multiply(RowSum &sum, const uint2 (&parts)[4]) const {
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t a[4];
            row_operand<BITS, 0>(a, w + i * BITS);
            mma(even, a[0], a[1], a[2], a[3], parts[2 * i].x, parts[2 * i].y);
            row_operand<BITS, 1>(a, w + i * BITS);
            mma(odd, a[0], a[1], a[2], a[3], parts[2 * i].x, parts[2 * i].y);
            row_operand<BITS, 2>(a, w + i * BITS);
            mma(even, a[0], a[1], a[2], a[3], parts[2 * i + 1].x, parts[2 * i + 1].y);
            row_operand<BITS, 3>(a, w + i * BITS);
            mma(odd, a[0], a[1], a[2], a[3], parts[2 * i + 1].x, parts[2 * i + 1].y);
        }
        add_block<BITS>(sum.low, sum.high, one.scale(), one.offset(), even[0] + odd[1], even[2] + odd[3], s);
    }
};

// parts: of x, for two pieces.
struct RowWork : Work<RowSum> {
    uint2 parts[2][4] = {};
};

// Of two sums of each of two lanes, `apart` lanes from each other, the lower lane gets both firsts and the upper both seconds.
__device__ __forceinline__ float with_other(float first, float second, int apart, int lane) {
    const bool upper = lane & apart;
    return (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, apart);
}

// To the warp's sums of a column tile.
__device__ __forceinline__ void add_sum(float *to, RowSum &sum, int lane) {
    float *mine = to + (lane >> 2) + (lane & 1) * 8;
    const float before = *mine;
    float all = with_other(sum.low, sum.high, 1, lane);
    all += __shfl_xor_sync(~0u, all, 2);
    if ((lane & 2) == 0) *mine = before + all;
    sum = RowSum();
}

// Segments of one kind, as many as there are. Everything of a step is loaded before the ring asks for more: that takes
// its time, which the loads need anyway. Where a step of two pieces has only one, the first is multiplied in place of the
// second, times nothing.
template <int BITS, bool PLAIN, int DEPTH> __device__ __forceinline__ void run(Ring<DEPTH> &ring, RowWork &work) {
    constexpr int EACH = BITS > 4 ? 1 : 2;
    Segment segment = *work.list;
    const int kind = segment.kind();
    // A column ends every few steps, and to go to the next one took as long as a step (500 of 1,120 clocks on an H200): so what
    // it needs is found once, or asked for beforehand.
    const ScalePlace place = ScalePlace::of_block<PLAIN>(segment.group(), ring.lane, ring.lane & 3);
    do {
        const Segment next = *++work.list;
        const half *x = work.x + segment.x_block() * 32;
        const float *sums = work.x_sums + segment.x_block();
        const int scale_bytes = segment.scale_bytes();
#pragma unroll 1
        for (int left = segment.pieces(); left > 0; left -= EACH, x += EACH * PIECE_ROWS, sums += EACH * PIECE_ROWS / 32) {
            ring.wait();
            const char *codes = ring.base + ring.slot, *scales = ring.base + ring.scale_slot;
            using Piece = RowPiece<BITS, PLAIN>;
            const Piece first(work.parts[0], codes, scales, place, x, sums, ring.lane);
            if constexpr (EACH == 2) {
                const bool two = left > 1;
                Piece second(work.parts[1], codes + (two ? PIECE_BYTES<BITS> : 0), scales + (two ? scale_bytes : 0), place,
                             x + (two ? PIECE_ROWS : 0), sums + (two ? PIECE_ROWS / 32 : 0), ring.lane);
                if (!two) second.one.clear();
                ring.go_on();
                first.multiply(work.sum, work.parts[0]);
                second.multiply(work.sum, work.parts[1]);
            } else {
                ring.go_on();
                first.multiply(work.sum, work.parts[0]);
            }
        }
        add_sum(work.sums + segment.column() * WARPS * 16, work.sum, ring.lane);
        segment = next;
    } while (segment.kind() == kind && segment.pieces());
}

// Calls F(bits, plain) for a width.
#define EXL_FOR_WIDTH(width, F)                          \
    switch (width) {                                     \
        case 0: F(2, false); break;                      \
        case 1: F(3, false); break;                      \
        case 2: F(4, false); break;                      \
        case 3: F(5, false); break;                      \
        case 4: F(6, false); break;                      \
        case 5: F(8, false); break;                      \
        case 6: F(4, true); break;                       \
    }

// All segments of a warp. x is the lane's, x_sums and sums the warp's.
template <int DEPTH>
__device__ __forceinline__ void multiply_row(const Segment *list, Ring<DEPTH> &ring, const half *x, const float *x_sums,
                                             float *sums) {
    RowWork work = {{list, x, x_sums + (ring.lane & 3), sums}};
    while (work.list->pieces()) {
#define EXL_RUN(BITS, PLAIN) run<BITS, PLAIN>(ring, work)
        EXL_FOR_WIDTH(work.list->width(), EXL_RUN)
#undef EXL_RUN
    }
}

}  // namespace exl
