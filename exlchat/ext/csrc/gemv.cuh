// y = x W for 1 to 8 rows of x.
//
// A block owns a range of column tiles, and each of its warps a range of their rows (exlchat/ext/plan.py). So a warp
// needs its own part of x alone and waits for no other until the end. It reads its weights by asynchronous copies into
// a ring of its own in shared memory, DEPTH - 1 steps ahead of what it multiplies, the first of them asked for before
// the previous kernel ends: as much as the memory delivers while that one ends and this one fetches x. Nothing of that
// depends on bit widths; only the multiplication does. The warps' sums of a column are added in a fixed order at the
// end: the same result every run.
#pragma once
#include "exlchat.h"
#include "tiles.cuh"

namespace exl {

constexpr int WARPS = EXL_WARPS;
constexpr int THREADS = WARPS * LANES;
constexpr int HEADER_INTS = 8, WARP_INTS = 4, SEGMENT_INTS = 4;
constexpr int PIECE_ROWS = 128;
constexpr int STEP_BYTES = 2048;  // the most codes of a step

// What the kernel needs of an ExlGemv.
struct Product {
    const int32_t *plan;
    const uint32_t *words[EXL_MAX_MATRICES], *scales[EXL_MAX_MATRICES];
    const half *bias[EXL_MAX_MATRICES];
    const void *x;
    const float *squares;
    void *y;
    const uint16_t *scatter;
    ExlResidual residual;
    float eps;
    int column_tiles[EXL_MAX_MATRICES], columns, stored, width, rows, x_kind, y_kind, y_stride, activation, plan_ints, segments;
    int early;  // whether weights are asked for before the previous kernel ends
    // Shared memory of a block, in bytes from its beginning, behind the Product; made on the host.
    int counts;       // int [HEADER_INTS]
    int lists;        // [WARPS][segments]
    int rings;        // [WARPS][DEPTH][STEP_BYTES]: codes, aligned to 128 bytes as they are in memory: copies between
                      // places that are not aligned alike take four times as long in shared memory
    int scale_rings, scale_slot;  // [WARPS][DEPTH][scale_slot]
    int x_at, x_stride;  // half [rows][x_stride], the parts of the warps one behind the other
    int x_sums;          // float [x_stride / 32][ROWS]: sums of 32 rows of x
    int sums;            // float [columns][WARPS][16][ROWS]
    int squares_at;      // float [WARPS]
    int bytes;
};
static_assert(sizeof(Product) % 8 == 0, "");

// Pieces that stand one behind the other in a column; as the plan has it.
struct __align__(16) Segment {
    int codes, scales, packed, x_column;

    __device__ __forceinline__ int pieces() const { return packed & 0x7ff; }
    __device__ __forceinline__ int piece_bytes() const { return packed >> 11 << 4 & 0xff0; }
    __device__ __forceinline__ int scale_bytes() const { return packed >> 19 << 4 & 0xf0; }
    __device__ __forceinline__ int matrix() const { return packed >> 23 & 3; }
    __device__ __forceinline__ int kind() const { return packed >> 25; }
    __device__ __forceinline__ int x_block() const { return x_column & 0xffff; }
    __device__ __forceinline__ int column() const { return x_column >> 16; }
};

// The asking side of a warp. A step is two pieces of at most four bits or one of wider codes. DEPTH slots: DEPTH - 1 steps
// are on their way, and the slot of the step multiplied last takes the next one when all lanes have come past it. With
// one slot a step is only asked for when its turn comes: for wide x on cards with little shared memory.
template <int DEPTH> struct Ring {
    const Product &job;
    const Segment *next;
    const char *codes, *scales;  // of the next step, this lane's
    int left, each;              // pieces of the segment that are still to be asked for, and pieces of a step
    int piece_bytes, scale_bytes;
    char *base;
    uint32_t slot, scale_slot, free, scale_free;  // of the next step, and of the one before it; from the base
    uint32_t first, scale_first, scale_stride;
    int lane;

    __device__ __forceinline__ Ring(const Product &job, const Segment *list, char *base)
        : job(job), next(list), left(0), base(base), scale_stride(job.scale_slot), lane(threadIdx.x % LANES) {
        const int warp = threadIdx.x / LANES;
        slot = first = job.rings + warp * DEPTH * STEP_BYTES;
        scale_slot = scale_first = job.scale_rings + warp * DEPTH * scale_stride;
        free = slot + (DEPTH - 1) * STEP_BYTES, scale_free = scale_slot + (DEPTH - 1) * scale_stride;
    }
    __device__ __forceinline__ void start() {
#pragma unroll 1
        for (int i = 0; i < DEPTH - 1; i++) ask(slot + i * STEP_BYTES, scale_slot + i * scale_stride);
    }
    // Behind the last segment comes nothing, which is endless.
    __device__ __forceinline__ void next_segment() {
        const Segment s = *next++;
        left = s.pieces(), piece_bytes = s.piece_bytes(), scale_bytes = s.scale_bytes();
        each = piece_bytes <= STEP_BYTES / 2 ? 2 : 1;
        if (left == 0) left = 1 << 30;
        const int matrix = s.matrix();
        codes = reinterpret_cast<const char *>(job.words[matrix]) + (size_t)(uint32_t)s.codes * 16 + lane * 16;
        scales = reinterpret_cast<const char *>(job.scales[matrix]) + (size_t)(uint32_t)s.scales * 16 + lane * 16;
    }
    // Copies the next step and its scales.
    __device__ __forceinline__ void ask(uint32_t to, uint32_t scales_to) {
        if (left <= 0) next_segment();
        const int pieces = min(left, each), at = lane * 16;
        const int step_bytes = pieces * piece_bytes;
#pragma unroll
        for (int i = 0; i < STEP_BYTES; i += 512) copy16_if(at + i < step_bytes, base + to + at + i, codes + i);
        copy16_if(at < pieces * scale_bytes, base + scales_to + at, scales);
        end_of_copies();
        codes += (uint32_t)step_bytes, scales += (uint32_t)(pieces * scale_bytes);
        left -= each;
    }
    // Waits for the step at `slot`.
    __device__ __forceinline__ void wait() {
        if constexpr (DEPTH == 1) ask(slot, scale_slot);
        wait_for_copies<DEPTH == 1 ? 0 : DEPTH - 2>();
        __syncwarp();  // also: all lanes have come past the step before, whose slot is free
    }
    // Asks for the next step, and goes on to the one behind that at `slot`.
    __device__ __forceinline__ void go_on() {
        if constexpr (DEPTH == 1) {
            __syncwarp();
            return;
        }
        ask(free, scale_free);
        free = slot, scale_free = scale_slot;
        slot += STEP_BYTES, scale_slot += scale_stride;
        if (slot == first + DEPTH * STEP_BYTES) slot = first, scale_slot = scale_first;
    }
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

// What a lane adds up, r and q being its row and column in the fragments: columns r and r + 8 of the tile with x rows 2 q
// and 2 q + 1; with one row of x, columns r (in 0) and r + 8 (in 2) over the blocks of 32 rows that fall to q.
template <int ROWS> struct Sum {
    float c[4] = {0.f, 0.f, 0.f, 0.f};
};

// What a lane needs for a piece times one row of x.
//
// The eight columns of the second operand hold eight parts of x, 16 rows each, where several rows of x would stand: two
// registers for 128 rows. Of each product one column is wanted, that of the 16 rows it has multiplied; blocks of 32 rows
// other than its own are zero, so that two sums are enough: in column 2 q the even product of block q, in column 2 q + 1
// the odd one.
template <int BITS, int EVERY, bool PLAIN> struct OneRow {
    uint32_t w[2 * BITS];
    OneScale<BITS, PLAIN, 128 / EVERY> one;
    float s;

    // x and sums are the lane's, parts holds zeros where the lane has none.
    __device__ __forceinline__ OneRow(uint2 (&parts)[4], const uint32_t *piece, const uint32_t *stored, const half *x,
                                      const float *sums, int lane)
        : one(stored, lane >> 2, (lane & 3) / (EVERY / 32)), s(*sums) {
        load_tile<BITS>(w, piece, lane);
        load_tile<BITS>(w + BITS, piece + BITS * LANES, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) load8_if(lane / 8 == i, parts[i], x);
    }
    __device__ __forceinline__ void multiply(Sum<1> &sum, const uint2 (&parts)[4]) const {
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
        const float2 scale = one.scale(), offset = one.offset();
        const float low = even[0] + odd[1], both = even[2] + odd[3];
        const float high = BITS == 4 ? both - low + (offset.y + 1024.f) * s : both + offset.y * s;
        sum.c[0] += scale.x * (low + offset.x * s);
        sum.c[2] += scale.y * (1.f / Codes<BITS>::UPPER) * high;
    }
};

// Group number S of a piece times up to eight rows of x. x and sums point to the lane's rows.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int S>
__device__ __forceinline__ void multiply_group(Sum<ROWS> &sum, const uint32_t *w, const uint32_t *stored, const half *x,
                                               const float *sums, int r) {
    constexpr int BLOCKS = EVERY / 32, FIRST = S * BLOCKS;
    const OneScale<BITS, PLAIN, 128 / EVERY> one(stored, r, S);
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
    const float upper = scale.y * (1.f / Codes<BITS>::UPPER);
    sum.c[0] += scale.x * c[0], sum.c[1] += scale.x * c[1], sum.c[2] += upper * c[2], sum.c[3] += upper * c[3];
}

// A piece times up to eight rows of x.
template <int BITS, int EVERY, bool PLAIN, int ROWS>
__device__ __forceinline__ void multiply_rows(Sum<ROWS> &sum, const uint32_t *piece, const uint32_t *stored,
                                              const half *x, const float *sums, int lane) {
    uint32_t w[2 * BITS];
    load_tile<BITS>(w, piece, lane);
    load_tile<BITS>(w + BITS, piece + BITS * LANES, lane);
    const int r = lane >> 2;
    multiply_group<BITS, EVERY, PLAIN, ROWS, 0>(sum, w, stored, x, sums, r);
    if constexpr (EVERY <= 64) multiply_group<BITS, EVERY, PLAIN, ROWS, 1>(sum, w, stored, x, sums, r);
    if constexpr (EVERY == 32) {
        multiply_group<BITS, EVERY, PLAIN, ROWS, 2>(sum, w, stored, x, sums, r);
        multiply_group<BITS, EVERY, PLAIN, ROWS, 3>(sum, w, stored, x, sums, r);
    }
}

// To a warp's sums of one column tile: [16][ROWS].
template <int ROWS> __device__ __forceinline__ void add_sum(float *to, Sum<ROWS> &sum, int lane) {
    const int r = lane >> 2, q = lane & 3;
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            sum.c[0] += __shfl_xor_sync(~0u, sum.c[0], d);
            sum.c[2] += __shfl_xor_sync(~0u, sum.c[2], d);
        }
        if (q == 0) to[r] += sum.c[0], to[r + 8] += sum.c[2];
    } else {
        float2 *low = reinterpret_cast<float2 *>(to + r * ROWS + q * 2), *high = low + 4 * ROWS;
        *low = {low->x + sum.c[0], low->y + sum.c[1]};
        *high = {high->x + sum.c[2], high->y + sum.c[3]};
    }
}

// What a warp multiplies with and where its sums go; x and x_sums are the lane's, sums the warp's.
struct Work {
    const Segment *list;
    const half *x;
    const float *x_sums;
    float *sums;
};

// Two pieces' parts of x, as OneRow has them.
struct Parts {
    uint2 of[2][4] = {};
};

// PIECES of the next step, x and sums pointing at the first. Everything is loaded before the ring asks for more: that
// takes its time, which the loads need anyway.
template <int BITS, int EVERY, bool PLAIN, int PIECES, int ROWS, int DEPTH>
__device__ __forceinline__ void multiply_step(Ring<DEPTH> &ring, Sum<ROWS> &sum, Parts &parts, const half *x,
                                              const float *sums) {
    constexpr int SCALES = ((PLAIN ? 40 : 10) * (128 / EVERY) + 15) / 16 * 4, CODES = 64 * BITS;
    static_assert(ROWS == 1 || DEPTH > 1, "several rows read the slot after the ring has gone on");
    ring.wait();
    const uint32_t *piece = reinterpret_cast<const uint32_t *>(ring.base + ring.slot);
    const uint32_t *stored = reinterpret_cast<const uint32_t *>(ring.base + ring.scale_slot);
    if constexpr (ROWS == 1) {
        using Row = OneRow<BITS, EVERY, PLAIN>;
        const Row first(parts.of[0], piece, stored, x, sums, ring.lane);
        if constexpr (PIECES == 2) {
            const Row second(parts.of[1], piece + CODES, stored + SCALES, x + PIECE_ROWS, sums + PIECE_ROWS / 32, ring.lane);
            ring.go_on();
            first.multiply(sum, parts.of[0]);
            second.multiply(sum, parts.of[1]);
        } else {
            ring.go_on();
            first.multiply(sum, parts.of[0]);
        }
    } else {
        ring.go_on();
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            multiply_rows<BITS, EVERY, PLAIN, ROWS>(sum, piece + i * CODES, stored + i * SCALES, x + i * PIECE_ROWS,
                                                    sums + i * (PIECE_ROWS / 32 * ROWS), ring.lane);
    }
}

// Segments of one kind, as many as there are.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run(Ring<DEPTH> &ring, Work &work, Sum<ROWS> &sum, Parts &parts, int kind) {
    constexpr int EACH = BITS > 4 ? 1 : 2;
    Segment segment = *work.list;
    do {
        const half *x = work.x + segment.x_block() * 32;
        const float *sums = work.x_sums + segment.x_block() * ROWS;
        int left = segment.pieces();
#pragma unroll 1
        for (; left >= EACH; left -= EACH, x += EACH * PIECE_ROWS, sums += EACH * PIECE_ROWS / 32 * ROWS)
            multiply_step<BITS, EVERY, PLAIN, EACH>(ring, sum, parts, x, sums);
        if (EACH > 1 && left) multiply_step<BITS, EVERY, PLAIN, 1>(ring, sum, parts, x, sums);
        add_sum<ROWS>(work.sums + segment.column() * WARPS * 16 * ROWS, sum, ring.lane);
        sum = Sum<ROWS>();
        segment = *++work.list;
    } while (segment.kind() == kind && segment.pieces());
}

// Calls F(bits, rows a scale, plain) for a kind of segment.
#define EXL_THREE(N, F, BITS, PLAIN)   \
    case N: F(BITS, 32, PLAIN); break; \
    case N + 1: F(BITS, 64, PLAIN); break; \
    case N + 2: F(BITS, 128, PLAIN); break;
#define EXL_FOR_KIND(kind, F)                                                                  \
    switch (kind) {                                                                            \
        EXL_THREE(0, F, 2, false) EXL_THREE(3, F, 3, false) EXL_THREE(6, F, 4, false)          \
        EXL_THREE(9, F, 5, false) EXL_THREE(12, F, 6, false) EXL_THREE(15, F, 8, false)        \
        EXL_THREE(18, F, 4, true)                                                              \
    }

}  // namespace exl
