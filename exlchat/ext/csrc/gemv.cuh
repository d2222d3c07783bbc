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
constexpr int PLAN_INTS = 8 + 4 * WARPS;
constexpr int TAIL = 128;         // rows that the last piece may reach beyond the matrix: zeros
constexpr int CODE_SLOT = 1024;   // bytes of the largest piece; whole 128 bytes, or copies are cut up (8 times slower)
constexpr int SCALE_SLOT = 160;   // bytes of the most scales

// Shared memory of a block, in bytes from its beginning, behind the job and the rings; made on the host.
struct GemvShape {
    int rings;
    int x, x_stride;  // half [rows][x_stride]
    int sums;         // float [32-row blocks][ROWS]: sums of x
    int whole;        // float [columns][16][ROWS]: sums of the warps that began a column
    int ends;         // float [WARPS][16][ROWS]: sums of the warps that went on with one
    int others;       // uint32 [columns]: which warps went on with a column
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

// The asking side of a warp's run.
template <int DEPTH> struct Ring {
    const Local &local;
    const char *codes, *scales;  // of the next piece, this lane's
    char *code_slots, *scale_slots;
    Place at;
    int left, ahead, code_units, scale_units, lane;
    uint32_t slot;  // of the oldest piece, counted on and on; ahead: pieces up to a change of section; units: 16 bytes

    __device__ __forceinline__ Ring(const Local &local, const Place &start, int pieces, char *base)
        : local(local), at(start), left(pieces), ahead(0), lane(threadIdx.x % LANES), slot(0) {
        const int warp = threadIdx.x / LANES;
        code_slots = base + warp * DEPTH * CODE_SLOT;
        scale_slots = base + WARPS * DEPTH * CODE_SLOT + warp * DEPTH * SCALE_SLOT;
    }
    // The section of the next piece; the run goes on there.
    __device__ __forceinline__ void seek() {
        if (at.piece == local.job.matrix[at.matrix].pieces) {
            at.piece = at.section = 0;
            local.next_column(at.matrix, at.column);
        }
        const ExlMatrix &m = local.job.matrix[at.matrix];
        while (at.piece >= m.sections[at.section].piece + m.sections[at.section].pieces) at.section++;
        const ExlSection &s = m.sections[at.section];
        const int before = at.piece - s.piece;
        code_units = s.piece_words / 4, scale_units = s.scale_words / 4;
        codes = reinterpret_cast<const char *>(m.words + (size_t)at.column * m.words_per_column + s.word +
                                               (size_t)before * s.piece_words) + lane * 16;
        scales = reinterpret_cast<const char *>(m.scales + (size_t)at.column * m.scale_words_per_column + s.scale +
                                                before * s.scale_words) + lane * 16;
        ahead = min(left, s.pieces - before);
        at.piece += ahead;
        left -= ahead;
    }
    // Copies the next piece of the section. It has 32 to 64 units of codes.
    __device__ __forceinline__ void copy(uint32_t to) {
        char *code = code_slots + to * CODE_SLOT + lane * 16;
        copy16(code, codes);
        if (lane + 32 < code_units) copy16(code + 512, codes + 512);
        if (lane < scale_units) copy16(scale_slots + to * SCALE_SLOT + lane * 16, scales);
        codes += code_units * 16, scales += scale_units * 16;
    }
    // Asks for the next COUNT pieces, or for nothing at the end of the run.
    template <int COUNT> __device__ __forceinline__ void ask(uint32_t to) {
        if (ahead >= COUNT) {
            ahead -= COUNT;
#pragma unroll
            for (uint32_t i = 0; i < COUNT; i++) {
                copy((to + i) % DEPTH);
                end_of_copies();
            }
            return;
        }
#pragma unroll 1
        for (uint32_t i = 0; i < COUNT; i++) {
            if (ahead == 0 && left > 0) seek();
            if (ahead > 0) copy((to + i) % DEPTH), ahead--;
            end_of_copies();
        }
    }
    __device__ __forceinline__ void start() { ask<DEPTH>(0); }
    // The oldest piece is there.
    __device__ __forceinline__ void wait() const {
        wait_for_copies<DEPTH - 1>();
        __syncwarp();
    }
    __device__ __forceinline__ const uint32_t *oldest_codes() const {
        return reinterpret_cast<const uint32_t *>(code_slots + slot % DEPTH * CODE_SLOT);
    }
    __device__ __forceinline__ const uint32_t *oldest_scales() const {
        return reinterpret_cast<const uint32_t *>(scale_slots + slot % DEPTH * SCALE_SLOT);
    }
    // The oldest piece is in registers: its slot takes another.
    __device__ __forceinline__ void refill() {
        __syncwarp();
        ask<1>(slot % DEPTH);
        slot++;
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

// What a lane adds up: columns r and r + 8 of x rows 2 q and 2 q + 1. With one row every lane q holds the same products
// (in 0 and 2) and a share of what is to be subtracted from them, four times; the lanes are added at the end.
template <int ROWS> struct Sum {
    float c[4] = {0.f, 0.f, 0.f, 0.f};
};

// Adds EVERY input rows, number S of such groups in the piece. x and sums point to the lane's part of the piece.
template <int BITS, int EVERY, int ROWS, int S, class Scales>
__device__ __forceinline__ void group(Sum<ROWS> &sum, const uint32_t *w, const Scales &scales, const half *x,
                                      const float *sums, int q) {
    constexpr int BLOCKS = EVERY / 32, FIRST = S * BLOCKS;
    const float2 offset = scales.offset(S), scale = scales.scale(S);
    float c[4], d[4] = {0.f, 0.f, 0.f, 0.f};  // two chains, because a product waits for the one before it
    if constexpr (ROWS == 1) {
        // Each block of 32 rows is counted by 4 / BLOCKS of the lanes q.
        const float s = sums[FIRST + q % BLOCKS] * BLOCKS;
        c[0] = offset.x * s, c[2] = offset.y * s, c[1] = c[3] = 0.f;
    } else {
        float2 s = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const float2 v = *reinterpret_cast<const float2 *>(sums + (FIRST + i) * ROWS);
            s.x += v.x, s.y += v.y;
        }
        c[0] = offset.x * s.x, c[1] = offset.x * s.y, c[2] = offset.y * s.x, c[3] = offset.y * s.y;
    }
    multiply<BITS, FIRST>(c, w, x);
    if constexpr (BLOCKS >= 2) multiply<BITS, FIRST + 1>(d, w, x);
    if constexpr (BLOCKS == 4) {
        multiply<BITS, FIRST + 2>(c, w, x);
        multiply<BITS, FIRST + 3>(d, w, x);
    }
    const float upper = scale.y * (1.f / Codes<BITS>::UPPER);
    sum.c[0] += scale.x * (c[0] + d[0]), sum.c[2] += upper * (c[2] + d[2]);
    if (ROWS > 1) sum.c[1] += scale.x * (c[1] + d[1]), sum.c[3] += upper * (c[3] + d[3]);
}

// `count` pieces of one section, x and sums pointing at the first.
template <int BITS, int EVERY, bool PLAIN, int ROWS, int DEPTH>
__device__ __forceinline__ void run(int count, Ring<DEPTH> &ring, Sum<ROWS> &sum, const half *x, const float *sums) {
    constexpr int ROWS_OF = BITS <= 4 ? 128 : 64, TILES = ROWS_OF / 64, COUNT = ROWS_OF / EVERY;
    const int lane = ring.lane, q = lane & 3;
    for (; count > 0; count--) {
        ring.wait();
        uint32_t w[TILES * BITS];
#pragma unroll
        for (int i = 0; i < TILES; i++) load_tile<BITS>(w + i * BITS, ring.oldest_codes() + i * BITS * LANES, lane);
        const PieceScales<BITS, PLAIN, COUNT> scales(ring.oldest_scales(), lane >> 2);
        ring.refill();
        group<BITS, EVERY, ROWS, 0>(sum, w, scales, x, sums, q);
        if constexpr (COUNT >= 2) group<BITS, EVERY, ROWS, 1>(sum, w, scales, x, sums, q);
        if constexpr (COUNT == 4) {
            group<BITS, EVERY, ROWS, 2>(sum, w, scales, x, sums, q);
            group<BITS, EVERY, ROWS, 3>(sum, w, scales, x, sums, q);
        }
        x += ROWS_OF;
        sums += ROWS_OF / 32 * ROWS;
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
