// How the kernel of gemv.cuh is launched; a .cu for each number of rows, because each takes a while to compile.
#pragma once
#include <cuda_runtime.h>

#include "gemv_rows_kernel.cuh"
#include "launch.cuh"

namespace exl {

inline int align16(int bytes) { return (bytes + 15) / 16 * 16; }

// at_once: rows that the kernel is made for, 1, 2, 4 or 8. Where there are several, sharing: blocks that share x; helpers: warps
// that stand in for one of the plan.
inline Product product_of(const ExlGemv &job, int at_once, int depth, int sharing = 1, int helpers = 1) {
    const int warps = helpers * WARPS;
    Product p = {};
    p.plan = job.plan;
    int scales = 0;
    for (int i = 0; i < job.matrices; i++) {
        const ExlMatrix &m = job.matrix[i];
        p.words[i] = m.words, p.scales[i] = m.scales, p.bias[i] = static_cast<const half *>(m.bias);
        p.column_tiles[i] = m.column_tiles;
        for (int n = 0; n < m.section_count; n++)
            scales = scales > m.sections[n].scale_words * 4 ? scales : m.sections[n].scale_words * 4;
    }
    p.x = job.x, p.squares = job.squares, p.scale = job.scale, p.y = job.y, p.scatter = job.scatter, p.residual = job.residual;
    p.eps = job.eps, p.stored = job.matrix[0].stored, p.width = job.width, p.rows = job.rows;
    p.x_kind = job.x_kind, p.y_kind = job.y_kind, p.y_stride = job.y_stride, p.activation = job.activation;
    p.plan_ints = job.plan_ints, p.segments = job.segments, p.columns = job.columns;
    p.counts = align16(sizeof(Product));
    p.lists = p.counts + HEADER_INTS * 4;
    p.scale_slot = 2 * scales;
    p.rings = (p.lists + warps * job.segments * SEGMENT_INTS * 4 + 127) / 128 * 128;
    p.scale_rings = p.rings + warps * depth * STEP_BYTES;
    p.x_at = p.scale_rings + warps * depth * p.scale_slot;
    // 64 bytes beyond a multiple of 128 keep the 8 rows of a fragment on different banks.
    p.x_stride = ((at_once == 1 ? job.x_rows : job.x_spans[sharing - 1]) + 63) / 64 * 64 + 32;
    p.x_sums = p.x_at + p.x_stride * 2 * job.rows;
    p.sums = p.x_sums + align16(p.x_stride / 32 * 4 * at_once);
    p.received = p.sums + job.columns * WARPS * 16 * at_once * 4;
    const bool shares = at_once > 1 && sharing > 1;
    p.gift = p.received + (shares ? job.columns * 16 * at_once * 4 : 0);
    p.squares_at = p.gift + (shares ? align16(sizeof(Gift)) : 0);
    p.bytes = p.squares_at + align16(WARPS * at_once * (job.x_kind >= EXL_X_JOIN_NORM ? (int)sizeof(JoinSums) : 4));
    if (job.y_kind == EXL_Y_ADD && job.residual.peers) p.exchange = p.bytes, p.bytes += sizeof(ExchangeInBlock);
    return p;
}

// What a ring's depth goes by: without what an exchange takes, for which there is room beside two blocks.
inline int bytes_of(const Product &p) { return p.exchange ? p.exchange : p.bytes; }

// How several rows are multiplied.
struct Way {
    int depth, sharing, helpers;
    int least;    // shared memory that a block takes, even where it needs less
    bool beside;  // whether blocks run beside those of the kernel before, and ask for weights meanwhile; else x comes first
};

// Whether a norm stands behind what joins the residual that a product reads or adds to. Kernels of their own do that: in those
// of several rows it would take registers from everybody (eight rows: 74 bytes spilled).
inline bool defers(const ExlGemv &job) {
    return job.x_kind >= EXL_X_JOIN_NORM || (job.y_kind == EXL_Y_ADD && job.residual.delta);
}
constexpr int DEFERRED_DEPTH = 3;  // of several rows that defer, the most

template <int ROWS, int HELPERS, int DEPTH>
int launch_rows(const ExlGemv &job, const Way &way, int dependent, cudaStream_t stream) {
    Product p = product_of(job, ROWS, DEPTH, way.sharing, HELPERS);
    p.early = way.beside;
    const int bytes = p.bytes > way.least ? p.bytes : way.least;
    const auto run = [&](auto pairs, auto alone) {
        if (way.sharing == 2) return launch_clusters(2, pairs, job.blocks, HELPERS * THREADS, bytes, dependent, stream, p);
        return launch(alone, job.blocks, HELPERS * THREADS, bytes, dependent, stream, p);
    };
    if constexpr (DEPTH <= DEFERRED_DEPTH) {
        if (defers(job)) return run(gemv_rows<ROWS, HELPERS, DEPTH, 2, true>, gemv_rows<ROWS, HELPERS, DEPTH, 1, true>);
    }
    return run(gemv_rows<ROWS, HELPERS, DEPTH, 2, false>, gemv_rows<ROWS, HELPERS, DEPTH, 1, false>);
}

template <int DEPTH> int launch_row(const ExlGemv &job, int dependent, cudaStream_t stream) {
    Product p = product_of(job, 1, DEPTH);
    p.early = dependent;
    return launch(defers(job) ? gemv<DEPTH, true> : gemv<DEPTH, false>, job.blocks, THREADS, p.bytes, dependent, stream, p);
}

// What of the card a launch goes by. room: bytes of shared memory that a block may take; of_sm: that a multiprocessor has.
struct Card {
    int room, of_sm, processors, major;

    // Shared memory that a block may take so that one of OVER_HALF more, of which no two fit a multiprocessor, has room
    // beside it; a kilobyte of each is CUDA's.
    int half() const { return of_sm / 2 - 1024 - 192; }
    // Whether a ring with a slot less lets blocks of two kernels of one row fit a multiprocessor together: 29 and 34 of 64
    // parts go together.
    bool fits_shorter(int bytes, int less) const { return bytes > of_sm / 64 * 29 && less <= of_sm / 64 * 34; }
    static constexpr int OVER_HALF = 256;
};
inline cudaError_t ask_card(const ExlGemv &job, Card &card) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    const auto ask = [&](int &value, cudaDeviceAttr which) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, which, device);
    };
    ask(card.room, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ask(card.of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(card.processors, cudaDevAttrMultiProcessorCount);
    ask(card.major, cudaDevAttrComputeCapabilityMajor);
    if (job.room > 0 && job.room < card.room) card.room = job.room;
    return error;
}

// One row, with as deep a ring as there is room for. EXL_BAD_ARGUMENT, and nothing launched, where none fits.
template <int DEPTH> int launch_deepest(const ExlGemv &job, int dependent, cudaStream_t stream) {
    Card card;
    if (const cudaError_t error = ask_card(job, card)) return error;
    if (product_of(job, 1, DEPTH).bytes <= card.room) return launch_row<DEPTH>(job, dependent, stream);
    if constexpr (DEPTH > 1) return launch_deepest<DEPTH - 1>(job, dependent, stream);
    return EXL_BAD_ARGUMENT;
}

// One row. Where the next kernel's blocks start early, blocks of two kernels must fit a multiprocessor together: if they
// do not, a multiprocessor that is done first takes two blocks of the next kernel and another none, and that takes twice
// as long (a 70B: 37 us a layer). So a ring that would take much gets one slot less.
template <int DEPTH> int launch_one(const ExlGemv &job, int dependent, cudaStream_t stream) {
    Card card;
    if (const cudaError_t error = ask_card(job, card)) return error;
    const int bytes = bytes_of(product_of(job, 1, DEPTH)), less = bytes_of(product_of(job, 1, DEPTH - 1));
    if (dependent && card.fits_shorter(bytes, less)) return launch_deepest<DEPTH - 1>(job, dependent, stream);
    return launch_deepest<DEPTH>(job, dependent, stream);
}

}  // namespace exl
