// y = x W for 1 to 8 rows of x.
//
// A block owns a range of column tiles, and its warps cut the pieces of that range, column after column, into runs of
// equal bytes (exlchat/ext/plan.py). So every warp reads one contiguous stretch of memory, by asynchronous copies into
// a ring of its own in shared memory: DEPTH pieces ahead of what it multiplies, the first of them asked for before the
// previous kernel ends. Nothing of that depends on bit widths; only the multiplication does. Sums of whole columns and
// of the ends of runs are added in a fixed order at the end: the same result every run.
#pragma once
#include "exlchat.h"
#include "tiles.cuh"

namespace exl {

constexpr int WARPS = EXL_WARPS;
constexpr int THREADS = WARPS * LANES;
constexpr int WARP_INTS = 12, PLAN_INTS = 8 + WARP_INTS * WARPS;
constexpr int PIECE_ROWS = 128, PIECE_TILES = 2;
constexpr int TAIL = PIECE_ROWS;  // rows that the last piece may reach beyond the matrix: zeros

// Shared memory of a block, in bytes from its beginning, behind the job and the rings; made on the host.
struct GemvShape {
    int rings, slot;  // [WARPS][DEPTH][slot]: codes, then scales; whole 128 bytes, as the codes are in memory: copies between
    int scales;       // places that are not aligned alike take four times as long in shared memory
    int x, x_stride;  // half [rows][x_stride]
    int sums;         // float [32-row blocks][ROWS]: sums of x
    int whole;        // float [columns][16][ROWS]: sums of the warps that began a column
    int ends;         // float [WARPS][16][ROWS]: sums of the warps that went on with one
    int squares;      // float [WARPS]
    int bytes;
};

// What a block keeps of its job in shared memory: read from the kernel's parameters, each of the dozen lines of them
// that it needs would cost a wait of its own, most of them behind the previous kernel's end.
struct Local {
    ExlGemv job;
    int plan[PLAN_INTS];

    // Number of a column tile among all of the block.
    __device__ __forceinline__ int first(int matrix) const { return plan[matrix * 2]; }
    __device__ __forceinline__ int count(int matrix) const { return plan[matrix * 2 + 1]; }
    __device__ __forceinline__ int number(int matrix, int column) const {
        int before = 0;
        for (int i = 0; i < matrix; i++) before += count(i);
        return before + column - first(matrix);
    }
    // Which warps go on with a column of the block that another has begun.
    __device__ __forceinline__ uint32_t others(int wanted) const {
        uint32_t found = 0;
        for (int w = 0; w < WARPS; w++) {
            const int *start = plan + 8 + w * WARP_INTS;
            if (start[2] > 0 && start[4] > 0 && number(start[0], start[1]) == wanted) found |= 1u << w;
        }
        return found;
    }
    __device__ __forceinline__ void next_column(int &matrix, int &column) const {
        column++;
        while (matrix < EXL_MAX_MATRICES - 1 && column == first(matrix) + count(matrix)) column = first(++matrix);
    }
};
static_assert(sizeof(ExlGemv) % 8 == 0, "");

// A place in the weights: piece number `piece` of a column tile of a matrix. Moves on through the block's columns.
struct Place {
    int matrix, column, piece, section;
};

// The asking side of a warp's run. DEPTH slots: DEPTH - 1 pieces are on their way, and the slot of the piece multiplied
// last takes the next one when all lanes have come past it. With one slot a piece is only asked for when its turn comes:
// for wide x on cards with little shared memory.
template <int DEPTH> struct Ring {
    const Local &local;
    const char *codes, *scales;  // of the next piece, this lane's
    char *slots;
    Place at;
    int left, ahead, code_bytes, scale_bytes;  // pieces behind this section's, and of it
    int lane, stride, scales_at, asked;
    char *oldest, *free;  // the slot of the oldest piece, and the one before it

    // Asks for the first pieces with what the plan says alone, as far as their section goes: the earlier a kernel asks,
    // the less the memory rests while the one before it ends and the next one fetches its x.
    __device__ __forceinline__ Ring(const Local &local, const ExlGemv &parameters, const GemvShape &shape, char *base)
        : local(local), lane(threadIdx.x % LANES), stride(shape.slot), scales_at(shape.scales) {
        const int warp = threadIdx.x / LANES;
        slots = oldest = base + shape.rings + warp * DEPTH * stride;
        free = slots + (DEPTH - 1) * stride;
        const int4 *plan = reinterpret_cast<const int4 *>(parameters.plan + blockIdx.x * PLAN_INTS + 8 + warp * WARP_INTS);
        const int4 a = __ldg(plan), b = __ldg(plan + 1), c = __ldg(plan + 2);
        at = {a.x, a.y, a.z, a.w};
        ahead = b.y, left = b.x - b.y, code_bytes = c.x * 16, scale_bytes = c.y * 16;
        codes = reinterpret_cast<const char *>(parameters.words[at.matrix]) + (size_t)b.z * 16 + lane * 16;
        scales = reinterpret_cast<const char *>(parameters.scales[at.matrix]) + (size_t)b.w * 16 + lane * 16;
        at.piece += ahead;
        asked = min(ahead, DEPTH - 1);
        ahead -= asked;
#pragma unroll
        for (int i = 0; i < DEPTH - 1; i++)
            if (i < asked) copy(slots + i * stride), end_of_copies();
    }
    // The others of the first pieces.
    __device__ __forceinline__ void finish_start() {
#pragma unroll 1
        for (; asked < DEPTH - 1; asked++) {
            if (ahead == 0) next_section();
            copy(slots + asked * stride);
            end_of_copies();
            ahead--;
        }
    }
    // What comes behind the last piece asked for: the next section, or nothing, which is endless.
    __device__ __forceinline__ void next_section() {
        if (left == 0) {
            code_bytes = scale_bytes = 0;
            ahead = 1 << 30;
            return;
        }
        if (at.piece == local.job.matrix[at.matrix].pieces) {
            at.piece = at.section = 0;
            local.next_column(at.matrix, at.column);
        }
        const ExlMatrix &m = local.job.matrix[at.matrix];
        while (at.piece >= m.sections[at.section].piece + m.sections[at.section].pieces) at.section++;
        const ExlSection &s = m.sections[at.section];
        const int before = at.piece - s.piece;
        code_bytes = s.piece_words * 4, scale_bytes = s.scale_words * 4;
        codes = reinterpret_cast<const char *>(m.words + (size_t)at.column * m.words_per_column + s.word +
                                               (size_t)before * s.piece_words) + lane * 16;
        scales = reinterpret_cast<const char *>(m.scales + (size_t)at.column * m.scale_words_per_column + s.scale +
                                                before * s.scale_words) + lane * 16;
        ahead = min(left, s.pieces - before);
        at.piece += ahead;
        left -= ahead;
    }
    // Copies the next piece of the section. Its codes have 512 to 2048 bytes.
    __device__ __forceinline__ void copy(char *slot_of_warp) {
        const int at_lane = lane * 16;
        char *to = slot_of_warp + at_lane;
#pragma unroll
        for (int i = 0; i < 2048; i += 512) copy16_if(at_lane + i < code_bytes, to + i, codes + i);
        copy16_if(at_lane < scale_bytes, to + scales_at, scales);
        codes += (uint32_t)code_bytes, scales += (uint32_t)scale_bytes;
    }
    // The same where both sizes are known.
    template <int CODES, int SCALES> __device__ __forceinline__ void copy_sized(char *to) {
        to += lane * 16;
#pragma unroll
        for (int i = 0; i < CODES; i += 512)
            copy16_if(i + 512 <= CODES || lane * 16 + i < CODES, to + i, codes + i);
        copy16_if(lane * 16 < SCALES, to + scales_at, scales);
        codes += CODES, scales += SCALES;
    }
    // Waits for the oldest piece; when all lanes have come past the one before it, its slot is free.
    __device__ __forceinline__ void wait() const {
        if constexpr (DEPTH > 1) wait_for_copies<DEPTH - 2>();
        __syncwarp();
    }
    // What was the oldest is in use; the next one is.
    __device__ __forceinline__ const uint32_t *take() {
        if constexpr (DEPTH == 1) {
            wait_for_copies<0>();
            __syncwarp();
        }
        const uint32_t *piece = reinterpret_cast<const uint32_t *>(oldest);
        free = oldest;
        oldest += stride;
        if (oldest == slots + DEPTH * stride) oldest = slots;
        return piece;
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

// What a lane adds up: columns r and r + 8 of x rows 2 q and 2 q + 1, r and q being its row and column in the fragments.
// With one row every lane q has all products (in 0 and 2) and scales some of them; four times the sum is what all four
// have together.
template <int ROWS> struct Sum {
    float c[4] = {0.f, 0.f, 0.f, 0.f};
};

// A piece times one row of x. A lane scales one group of EVERY rows, or a fourth of the groups' blocks of 32: scales are
// dear, and the four lanes of a row have the same products. x and sums point to the piece.
template <int BITS, int EVERY, bool PLAIN>
__device__ __forceinline__ void multiply_one(Sum<1> &sum, const uint32_t *w, const uint32_t *stored, const half *x,
                                             const float *sums, int lane) {
    constexpr int GROUPS = PIECE_ROWS / EVERY, BLOCKS = EVERY / 32;
    const int q = lane & 3, g = q % GROUPS;
    const OneScale<BITS, PLAIN, GROUPS> one(stored, lane >> 2, g);
    float c[GROUPS < 2 ? 2 : GROUPS][4] = {};
    const float s = sums[g * BLOCKS + q / GROUPS] * BLOCKS;
    multiply<BITS, 0>(c[0], w, x);
    multiply<BITS, 1>(c[GROUPS == 4 ? 1 : 0], w, x);
    multiply<BITS, 2>(c[GROUPS == 4 ? 2 : 1], w, x);
    multiply<BITS, 3>(c[GROUPS == 4 ? 3 : 1], w, x);
    float low, high;
    if constexpr (GROUPS == 1) {
        low = c[0][0] + c[1][0], high = c[0][2] + c[1][2];
    } else if constexpr (GROUPS == 2) {
        low = g ? c[1][0] : c[0][0], high = g ? c[1][2] : c[0][2];
    } else {
        low = q & 2 ? (q & 1 ? c[3][0] : c[2][0]) : (q & 1 ? c[1][0] : c[0][0]);
        high = q & 2 ? (q & 1 ? c[3][2] : c[2][2]) : (q & 1 ? c[1][2] : c[0][2]);
    }
    sum.c[0] += one.scale.x * GROUPS * (low + one.offset.x * s);
    sum.c[2] += one.scale.y * (GROUPS / (float)Codes<BITS>::UPPER) * (high + one.offset.y * s);
}

// EVERY rows of a piece times up to eight rows of x, number S of such groups. x and sums point to the lane's rows.
template <int BITS, int EVERY, int ROWS, int S, class Scales>
__device__ __forceinline__ void multiply_group(Sum<ROWS> &sum, const uint32_t *w, const Scales &scales, const half *x,
                                               const float *sums) {
    constexpr int BLOCKS = EVERY / 32, FIRST = S * BLOCKS;
    const float2 offset = scales.offset(S), scale = scales.scale(S);
    float2 s = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const float2 v = *reinterpret_cast<const float2 *>(sums + (FIRST + i) * ROWS);
        s.x += v.x, s.y += v.y;
    }
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

// A piece from its slot.
template <int BITS, int EVERY, bool PLAIN, int ROWS>
__device__ __forceinline__ void multiply_piece(const uint32_t *piece, int scales_at, Sum<ROWS> &sum, const half *x,
                                               const float *sums, int lane) {
    uint32_t w[PIECE_TILES * BITS];
#pragma unroll
    for (int i = 0; i < PIECE_TILES; i++) load_tile<BITS>(w + i * BITS, piece + i * BITS * LANES, lane);
    const uint32_t *stored = piece + scales_at / 4;
    if constexpr (ROWS == 1) {
        multiply_one<BITS, EVERY, PLAIN>(sum, w, stored, x, sums, lane);
    } else {
        constexpr int GROUPS = PIECE_ROWS / EVERY;
        PieceScales<BITS, PLAIN, GROUPS> scales;
        scales.load(stored, lane >> 2);
        multiply_group<BITS, EVERY, ROWS, 0>(sum, w, scales, x, sums);
        if constexpr (GROUPS >= 2) multiply_group<BITS, EVERY, ROWS, 1>(sum, w, scales, x, sums);
        if constexpr (GROUPS == 4) {
            multiply_group<BITS, EVERY, ROWS, 2>(sum, w, scales, x, sums);
            multiply_group<BITS, EVERY, ROWS, 3>(sum, w, scales, x, sums);
        }
    }
}

// `count` pieces of one section, x and sums pointing at the first. What is asked for meanwhile is of the same kind but
// for the last pieces of a section.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run(int count, Ring<DEPTH> &ring, Sum<ROWS> &sum, const half *x, const float *sums) {
    constexpr int GROUPS = PIECE_ROWS / EVERY, CODES = 256 * BITS;
    constexpr int SCALES = ((PLAIN ? 40 : 10) * GROUPS + 15) / 16 * 16;
    while (count > 0) {
        if (ring.ahead == 0) ring.next_section();
        if (ring.code_bytes == CODES && ring.scale_bytes == SCALES) {
            const int n = min(count, ring.ahead);
            count -= n, ring.ahead -= n;
#pragma unroll 1
            for (int i = 0; i < n; i++, x += PIECE_ROWS, sums += PIECE_ROWS / 32 * ROWS) {
                ring.wait();
                ring.template copy_sized<CODES, SCALES>(ring.free);
                end_of_copies();
                multiply_piece<BITS, EVERY, PLAIN, ROWS>(ring.take(), ring.scales_at, sum, x, sums, ring.lane);
            }
        } else {
            ring.wait();
            ring.copy(ring.free);
            end_of_copies();
            multiply_piece<BITS, EVERY, PLAIN, ROWS>(ring.take(), ring.scales_at, sum, x, sums, ring.lane);
            count--, ring.ahead--, x += PIECE_ROWS, sums += PIECE_ROWS / 32 * ROWS;
        }
    }
}

// The sums of one column tile: [16][ROWS].
template <int ROWS> __device__ __forceinline__ void store_sum(float *to, Sum<ROWS> &sum, int lane) {
    const int r = lane >> 2, q = lane & 3;
    if constexpr (ROWS == 1) {
#pragma unroll
        for (int d = 1; d <= 2; d *= 2) {
            sum.c[0] += __shfl_xor_sync(~0u, sum.c[0], d);
            sum.c[2] += __shfl_xor_sync(~0u, sum.c[2], d);
        }
        if (q == 0) to[r] = sum.c[0] * 0.25f, to[r + 8] = sum.c[2] * 0.25f;
    } else {
        *reinterpret_cast<float2 *>(to + r * ROWS + q * 2) = {sum.c[0], sum.c[1]};
        *reinterpret_cast<float2 *>(to + (r + 8) * ROWS + q * 2) = {sum.c[2], sum.c[3]};
    }
}

}  // namespace exl
