// y = x W for 1 to 8 rows of x.
//
// A block owns a range of column tiles, and each of its warps a range of their rows (exlchat/ext/plan.py). So with one row of
// x a warp needs its own part of it alone and waits for no other until the end; several rows are brought by all warps
// together, of one block or of two (gemv_rows_kernel.cuh). A warp reads its weights by asynchronous copies into
// a ring of its own in shared memory, DEPTH - 1 steps ahead of what it multiplies, the first of them, where a block has room
// beside the previous kernel, before that ends: as much as the memory delivers while it ends and this one fetches x. Nothing of that
// depends on bit widths; only the multiplication does. The warps' sums of a column are added in a fixed order at the
// end, those of the first half of the warps and those of the others: the same result every run.
#pragma once
#include "exlchat.h"
#include "tiles.cuh"

namespace exl {

constexpr int WARPS = EXL_WARPS;
constexpr int THREADS = WARPS * LANES;
constexpr int HEADER_INTS = 8, WARP_INTS = 4, SEGMENT_INTS = 4;
constexpr int PIECE_ROWS = 128;
constexpr int STEP_BYTES = 2048;  // the most codes of a step
template <int BITS> constexpr int PIECE_BYTES = PIECE_ROWS * 16 * BITS / 8;

// What the kernel needs of an ExlGemv; or, where they are too many for a block's memory, of some of its rows.
struct Product {
    const int32_t *plan;
    const uint32_t *words[EXL_MAX_MATRICES], *scales[EXL_MAX_MATRICES];
    const half *bias[EXL_MAX_MATRICES];
    const void *x;
    const float *squares;
    float *scale;
    void *y;
    const uint16_t *scatter;
    ExlResidual residual;
    float eps;
    int column_tiles[EXL_MAX_MATRICES], columns, stored, width, rows, x_kind, y_kind, y_stride, activation, plan_ints, segments;
    int early;  // whether weights are asked for before the previous kernel ends
    // Shared memory of a block, in bytes from its beginning, behind the Product; made on the host.
    int counts;       // int [HEADER_INTS]
    int lists;        // [warps of the block][segments]
    int rings;        // [warps of the block][DEPTH][STEP_BYTES]: codes, aligned to 128 bytes as they are in memory: copies between
                      // places that are not aligned alike take four times as long in shared memory
    int scale_rings, scale_slot;  // [warps of the block][DEPTH][scale_slot]
    int x_at, x_stride;  // half [rows][x_stride]; of one row, but for experts, the parts of the warps one behind the other
    int x_sums;          // float [x_stride / 32][ROWS]: sums of 32 rows of x
    int sums;            // float [columns][WARPS][16]; of several rows as gemv_rows_kernel.cuh says
    int received;        // float [columns][16 * ROWS]: what a neighbour has added up, where blocks share x
    int gift;            // a Gift: that it is there
    int squares_at;      // float, or where x joins JoinSums, [ROWS][WARPS]
    int exchange;        // an ExchangeInBlock, where what is added is a sum over cards; else 0
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
    // A kind is a number of the width and the kind of scales, times 4, and the logarithm of rows a scale over 32.
    __device__ __forceinline__ int kind() const { return packed >> 25; }
    __device__ __forceinline__ int width() const { return kind() >> 2; }
    __device__ __forceinline__ int group() const { return kind() & 3; }
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

// What a warp multiplies with and where its sums go; x and x_sums are the lane's, sums the warp's.
template <class Sum> struct Work {
    const Segment *list;
    const half *x;
    const float *x_sums;
    float *sums;
    Sum sum;
};

}  // namespace exl
