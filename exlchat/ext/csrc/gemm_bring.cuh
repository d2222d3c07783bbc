// How the work of gemm.cuh is cut, and the warps that bring it to shared memory.
#pragma once
#include "device.cuh"
#include "exlchat.h"
#include "launch.cuh"
#include "wgmma.cuh"

namespace exl {

constexpr int MULTIPLIERS = EXL_GEMM_WARPS, BRINGERS = 4;  // warps
constexpr int MULTIPLY_THREADS = MULTIPLIERS * LANES, BRING_THREADS = BRINGERS * LANES;
constexpr int GROUP_TILES = 16, WARP_TILES = GROUP_TILES / MULTIPLIERS;
constexpr int MOST_CLUSTER = 8;  // blocks
constexpr int X_BYTES = EXL_PIECE_ROWS * 2;  // of a row of x in a piece

// Products by groups of four warps where the card has them, but for few rows: a layer of an 8B with 16 takes 67 us by each
// warp for itself and 77 so, one with 64 rows 135 and 108.
constexpr int MOST_PAIRED_TILES = 2;
template <int TILES> constexpr bool BY_GROUPS = EXL_WGMMA && TILES > MOST_PAIRED_TILES;

// Pieces on their way, with the one that is multiplied. The first is multiplied when all of them have been asked for: 16 rows, a
// layer of an 8B, 68.1 us with four and 71.1 with six; 32 rows 75.7 and 75.1 (one H200, widths mixed).
constexpr int most_stages(int tiles) { return tiles > MOST_PAIRED_TILES ? 6 : 4; }

// Shared memory of a block: slots, each of x [tiles * 8][128], codes [GROUP_TILES][code_bytes] and scales
// [GROUP_TILES][scale_bytes] of a piece; behind them, on Hopper, the job. Cards with 99 KB would have a slot less for it.
constexpr bool KEEPS_JOB = EXL_WGMMA;
struct GemmShape {
    int code_bytes, scale_bytes, slot, stages, job_bytes;

    __host__ __device__ int job_at() const { return stages * slot; }
    int bytes() const { return job_at() + job_bytes; }

    // Pieces whose products may go on behind the barrier at which those of the next one begin.
    template <int TILES> __device__ __forceinline__ int going_on() const { return BY_GROUPS<TILES> && stages > 2 ? 1 : 0; }
};
constexpr int SLOT_ALIGNMENT = 1024;  // as `wgmma` wants x

// Where the 16 bytes number c of row r of x stand in a slot, for products of so many tiles. For `mma` those of odd rows at
// c ^ 4, which keeps the eight lanes that read together on different banks; for `wgmma` as `described` says.
template <int TILES> __device__ __forceinline__ int x_place(int r, int c) {
    return BY_GROUPS<TILES> ? c / 8 * (TILES * 8 * X_BYTES / 2) + r * (X_BYTES / 2) + ((c % 8) ^ (r % 8)) * 16
                            : r * X_BYTES + (c ^ (r & 1) << 2) * 16;
}
template <int TILES> constexpr int X_EIGHT_ROWS = BY_GROUPS<TILES> ? 4 * X_BYTES : 8 * X_BYTES;  // to the eighth row behind

// How the units lie: matrix by matrix, group by group, pass by pass, piece by piece. Passes that read the same weights
// are neighbours, so that L2 has them.
struct GemmUnits {
    int first[EXL_MAX_MATRICES + 1];
    int passes, blocks;  // no more blocks than units
    int each, more;      // units of a block; how many of the first blocks have one more
    int cluster;         // blocks that share a group, or 1 where runs begin anywhere

    __host__ __device__ int total() const { return first[EXL_MAX_MATRICES]; }
    // The first unit of a block, and the first that is no longer its own. Blocks of a cluster have equal parts of one group and
    // pass.
    __device__ __forceinline__ int2 run(const ExlGemm &job, int block) const {
        if (cluster == 1) return {each * block + min(block, more), each * (block + 1) + min(block + 1, more)};
        int group = block / cluster, matrix = 0;
        const int rank = block - group * cluster;
        for (; matrix + 1 < job.matrices; matrix++) {
            const int groups = (first[matrix + 1] - first[matrix]) / job.matrix[matrix].pieces;
            if (group < groups) break;
            group -= groups;
        }
        const int pieces = job.matrix[matrix].pieces, start = first[matrix] + group * pieces;
        return {start + pieces * rank / cluster, start + pieces * (rank + 1) / cluster};
    }
    __device__ int block_of(int unit) const {
        const int of_larger = (each + 1) * more;
        return unit < of_larger ? unit / (each + 1) : (unit - more) / each;
    }
};

// The part of a block's run that lies in one group and pass.
struct GemmPart {
    int matrix, group, pass, piece, end, pieces;

    __device__ __forceinline__ GemmPart(const ExlGemm &job, const GemmUnits &units, int unit, int last) {
        matrix = 0;
        while (unit >= units.first[matrix + 1]) matrix++;
        pieces = job.matrix[matrix].pieces;
        const int number = (unit - units.first[matrix]) / pieces;
        piece = (unit - units.first[matrix]) % pieces;
        group = units.passes == 1 ? number : number / units.passes, pass = number - group * units.passes;
        end = min(pieces, piece + last - unit);
    }
};

// The slots in turn.
struct Slots {
    char *shared;
    int size, count, at;

    __device__ __forceinline__ Slots(char *shared, const GemmShape &shape)
        : shared(shared), size(shape.slot), count(shape.stages), at(0) {}
    __device__ __forceinline__ char *next() {
        char *slot = shared + at * size;
        at = at + 1 == count ? 0 : at + 1;
        return slot;
    }
};

// What a thread of the warps that bring does, for all parts of a run: the pieces of the next one come while the sums of
// the last one are added. Barriers: one before a piece is multiplied; with one slot alone, another before it is brought.
template <int TILES> struct Bringer {
    const ExlGemm &job;
    const GemmShape &shape;
    Slots slots;
    int thread, asked = 0;  // pieces

    __device__ __forceinline__ Bringer(const ExlGemm &job, const GemmShape &shape, char *shared)
        : job(job), shape(shape), slots(shared, shape), thread(threadIdx.x - MULTIPLY_THREADS) {}
    __device__ __forceinline__ void bring(const GemmPart &part) {
        const ExlMatrix &m = job.matrix[part.matrix];
        int piece = part.piece;
        for (int i = 0; piece < part.end; i++) {
            const ExlSection &section = m.sections[i];
            const int before = piece - section.piece, count = min(part.end - piece, section.pieces - before);
            if (count <= 0) continue;
            bring_run(m, part, section, i + 1 < m.section_count ? m.sections[i + 1].row : m.stored, before, count);
            piece += count;
        }
    }
    __device__ __forceinline__ void end() {
        for (int i = 1; i < shape.stages - shape.template going_on<TILES>(); i++) {
            hand_over();
            end_of_copies();
        }
    }
    // `count` pieces of a section, from number `before` of it on.
    __device__ __forceinline__ void bring_run(const ExlMatrix &m, const GemmPart &part, const ExlSection &section,
                                              int last, int before, int count) {
        const int tile = part.group * GROUP_TILES, row = part.pass * TILES * 8 + thread / 16;
        const int lane = thread % LANES, warp = thread / LANES, first = warp * (GROUP_TILES / BRINGERS);
        const int tiles = m.column_tiles - tile;
        const int piece_words = section.piece_words, scale_words = section.scale_words;
        const uint32_t *codes =
            m.words + (size_t)(tile + first) * m.words_per_column + section.word + before * piece_words + lane * 4;
        const uint32_t *scales = m.scales + (size_t)(tile + thread % 16) * m.scale_words_per_column + section.scale +
                                 before * scale_words + thread / 16 * 4;
        int k = section.row + before * EXL_PIECE_ROWS + thread % 16 * 8;
        const half *x = static_cast<const half *>(job.x) + (size_t)row * m.stored + k;
        for (; count > 0; count--) {
            if (shape.stages > 1) hand_over();
            else __syncthreads();
            char *slot = slots.next();
            char *codes_to = slot + TILES * 8 * X_BYTES + first * shape.code_bytes + lane * 16;
            bring_codes(codes_to, codes, m.words_per_column, tiles - first, piece_words / 4 - lane);
            char *scales_to = slot + TILES * 8 * X_BYTES + GROUP_TILES * shape.code_bytes;
            bring_scales(scales_to, scales, tiles, scale_words / 4);
            wait_for_previous();
            bring_x(slot, x, m.stored, k < last ? job.rows - row : 0);
            end_of_copies();
            if (shape.stages == 1) hand_over();
            codes += piece_words, scales += scale_words, x += EXL_PIECE_ROWS, k += EXL_PIECE_ROWS;
        }
    }
    // Codes of four column tiles, as far as there are `tiles`, and as they have `units` of 16 bytes from this lane's first
    // on.
    __device__ __forceinline__ void bring_codes(char *to, const uint32_t *from, int stride, int tiles, int units) const {
#pragma unroll
        for (int t = 0; t < GROUP_TILES / BRINGERS; t++) {
            const bool real = t < tiles;
#pragma unroll
            for (int i = 0; i < 4; i++) copy16_if(real && i * LANES < units, to + i * 512, from + i * 128);
            to += shape.code_bytes, from += stride;
        }
    }
    __device__ __forceinline__ void bring_scales(char *to, const uint32_t *from, int tiles, int units) const {
        const int t = thread % 16, unit = thread / 16;
        const bool real = t < tiles;
        to += t * shape.scale_bytes + unit * 16;
        copy16_if(real && unit < units, to, from);
        copy16_if(real && unit + 8 < units, to + 128, from + 32);
    }
    // Eight rows apart, as far as there are `rows`; zeros behind the end of a section, where there are none.
    __device__ __forceinline__ void bring_x(char *to, const half *from, int stored, int rows) const {
        to += x_place<TILES>(thread / 16, thread % 16);
#pragma unroll
        for (int i = 0; i < TILES; i++, from += 8 * stored) copy16_if(i * 8 < rows, to + i * X_EIGHT_ROWS<TILES>, from);
        if (rows > 0) return;
        for (int i = 0; i < TILES; i++) *reinterpret_cast<uint4 *>(to + i * X_EIGHT_ROWS<TILES>) = uint4{0, 0, 0, 0};
    }
    // Lets the oldest piece be multiplied, and waits for the end of those before it whose products do not go on: the slot
    // of the last of them is the next to be filled. Nothing as long as there are free ones.
    __device__ __forceinline__ void hand_over() {
        const int ahead = shape.stages - shape.template going_on<TILES>();
        if (++asked < ahead) return;
        if (ahead == 6) wait_for_copies<4>();
        else if (ahead == 5) wait_for_copies<3>();
        else if (ahead == 4) wait_for_copies<2>();
        else if (ahead == 3) wait_for_copies<1>();
        else wait_for_copies<0>();
        if constexpr (BY_GROUPS<TILES>) show_to_products();
        __syncthreads();
    }
};

}  // namespace exl
