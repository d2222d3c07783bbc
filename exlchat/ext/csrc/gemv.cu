// The C entry: checks, then the kernel for one row or for several.
#include "gemv_launch.cuh"
#include "matrix.cuh"

namespace exl {

extern template int launch_one<4>(const ExlGemv &, int, cudaStream_t);
#define EXL_ELSEWHERE(ROWS, HELPERS, DEPTH) \
    extern template int launch_rows<ROWS, HELPERS, DEPTH>(const ExlGemv &, const Way &, int, cudaStream_t);
EXL_ELSEWHERE(2, 1, 2)
EXL_ELSEWHERE(2, 1, 3)
EXL_ELSEWHERE(2, 1, 4)
EXL_ELSEWHERE(4, 1, 2)
EXL_ELSEWHERE(4, 2, 2)
EXL_ELSEWHERE(8, 1, 2)
EXL_ELSEWHERE(8, 2, 2)
#undef EXL_ELSEWHERE

static bool job_ok(const ExlGemv &job) {
    if (job.matrices < 1 || job.matrices > EXL_MAX_MATRICES || job.rows < 1 || job.rows > EXL_MAX_ROWS) return false;
    if (!job.x || !job.plan || job.blocks < 1 || job.columns < 1 || job.x_rows < 1) return false;
    if (job.segments < 2 || job.plan_ints % 4 || job.room < 0) return false;
    if (job.x_spans[0] < 1 || job.x_spans[1] < 0) return false;
    if (job.plan_ints < 8 + EXL_WARPS * 4 * (1 + job.segments)) return false;
    if (job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_JOIN || job.y_kind < EXL_Y_HALF || job.y_kind > EXL_Y_ACTIVATED) return false;
    if (!is_activation(job.activation)) return false;
    if (job.x_kind != EXL_X_HALF && (!job.squares || job.width < 16 || job.width % 16)) return false;
    if (job.x_kind >= EXL_X_JOIN_NORM && (!job.scale || !aligned(job.squares))) return false;
    if (job.y_kind == EXL_Y_ADD ? !residual_ok(job.residual) : !job.y || job.y_stride < 1) return false;
    if (job.y_kind == EXL_Y_ADD && job.residual.delta && !job.residual.post_norm) return false;
    // One kernel either reads and adds as of a stream that defers, or does neither.
    if (job.y_kind == EXL_Y_ADD && job.x_kind != EXL_X_HALF && (job.x_kind != EXL_X_NORM) != (job.residual.delta != nullptr))
        return false;
    if (job.y_kind == EXL_Y_GATED && (job.matrices != 2 || job.matrix[0].column_tiles != job.matrix[1].column_tiles))
        return false;
    if (!aligned(job.x) || !aligned(job.plan)) return false;
    int64_t columns = 0;
    for (int i = 0; i < job.matrices; i++) {
        const ExlMatrix &m = job.matrix[i];
        if (!matrix_ok(m) || m.stored != job.matrix[0].stored) return false;
        columns += m.column_tiles * (int64_t)16;
    }
    if (job.y_kind == EXL_Y_GATED) return job.scatter || job.y_stride >= columns / 2;
    if (job.y_kind == EXL_Y_ACTIVATED && job.scatter) return true;
    return job.y_kind == EXL_Y_ADD ? job.residual.columns == columns : job.y_stride >= columns;
}

// Rows `first` to `first` + `count` - 1 of a product.
static ExlGemv rows_of(const ExlGemv &job, int first, int count) {
    ExlGemv part = job;
    part.rows = count;
    const bool joins = job.x_kind >= EXL_X_JOIN_NORM;
    part.x = static_cast<const char *>(job.x) + (size_t)first * job.matrix[0].stored * (joins ? 8 : job.x_kind == EXL_X_NORM ? 4 : 2);
    if (job.x_kind != EXL_X_HALF) part.squares = job.squares + (size_t)first * (job.width / 16) * (joins ? 4 : 1);
    if (joins) part.scale = job.scale + first;
    if (job.y_kind != EXL_Y_ADD) {
        part.y = static_cast<char *>(job.y) + (size_t)first * job.y_stride * (job.y_kind == EXL_Y_FLOAT ? 4 : 2);
        return part;
    }
    const bool deferred = job.residual.delta;
    part.residual.hidden += first * job.residual.columns;
    part.residual.squares += first * (job.residual.columns / 16) * (deferred ? 4 : 1);
    if (deferred) part.residual.delta += first * job.residual.columns, part.residual.scale += first;
    part.residual.word += first * (int)job.residual.columns;
    for (ExlNormCopy &copy : part.residual.copies)
        if (copy.values) copy.values += first * copy.stored * (deferred ? 2 : 1);
    return part;
}

static int at_once(int rows) { return rows <= 2 ? 2 : (rows <= 4 ? 4 : 8); }

// What adds to the residual reads wider x, and may take so much more than half of a multiprocessor's shared memory.
constexpr int LARGER = 11 * 1024;

// Whether blocks of two rows with so deep a ring fit a multiprocessor together with those of the kernel before.
static bool beside(const ExlGemv &job, int depth, int sharing, const Card &card) {
    const int share = card.half() + (job.x_kind == EXL_X_HALF ? LARGER : -LARGER);
    return bytes_of(product_of(job, 2, depth, sharing)) <= share;
}
// How many helpers and how deep a ring several rows get; false where there is no room.
//
// Two rows: as deep as there is room for, but one slot less where blocks of two kernels then fit a multiprocessor together, as for
// one row; at most DEFERRED_DEPTH of those that defer. More: always two slots, since a step whose products had different
// numbers of them went through more instructions than a multiprocessor keeps (one H200, the step of an 8B with 128 tokens
// cached, four rows of a sequence each: 2.33 ms where one product of four had another number, 2.04 where none had).
static bool find_way(const ExlGemv &job, const Card &card, int dependent, Way &way) {
    const int rows = at_once(job.rows);
    const auto fits = [&](int depth, int helpers) { return product_of(job, rows, depth, way.sharing, helpers).bytes <= card.room; };
    way.helpers = rows > 2 && fits(2, 2) ? 2 : 1;
    way.depth = 2;
    if (rows > 2) return fits(2, way.helpers);
    const bool shorter = dependent && !beside(job, 4, way.sharing, card) && beside(job, 3, way.sharing, card);
    if (!defers(job) && fits(4, 1) && !shorter) way.depth = 4;
    else if (fits(3, 1)) way.depth = 3;
    return fits(way.depth, 1);
}

// Whether a multiprocessor must not have room for two blocks of this. Where the kernel before leaves a place only when it
// ends, one that is done first would take two blocks, and another none. That is so behind attention of several rows, two
// blocks of which fill a multiprocessor, and where what adds to the residual leaves no room beside it. How much that takes is
// guessed: an MLP is some 3.5 times as wide as the residual, of x blocks bring an eighth more than their share, since the ranges
// of the warps overlap, and scales take 256 bytes of a slot at most.
static bool stands_alone(const ExlGemv &job, int sharing, const Card &card) {
    if (job.x_kind == EXL_X_HALF) return true;
    const int inputs = job.width * 7 / 2 / sharing, x = inputs * 9 / 8 * job.rows * 2;
    return x + 3 * WARPS * (STEP_BYTES + 256) > card.half() + LARGER;
}

template <int ROWS> static int launch_helped(const ExlGemv &job, const Way &way, int dependent, cudaStream_t stream) {
    return way.helpers == 2 ? launch_rows<ROWS, 2, 2>(job, way, dependent, stream) : launch_rows<ROWS, 1, 2>(job, way, dependent, stream);
}
static int launch_way(const ExlGemv &job, const Way &way, int dependent, cudaStream_t stream) {
    if (job.rows == 1) return launch_one<4>(job, dependent, stream);
    if (at_once(job.rows) == 8) return launch_helped<8>(job, way, dependent, stream);
    if (at_once(job.rows) == 4) return launch_helped<4>(job, way, dependent, stream);
    switch (way.depth) {
        case 4: return launch_rows<2, 1, 4>(job, way, dependent, stream);
        case 3: return launch_rows<2, 1, 3>(job, way, dependent, stream);
        default: return launch_rows<2, 1, 2>(job, way, dependent, stream);
    }
}

// Several rows, as many at a time as fit: fewer passes over the weights are worth more than a deep ring. Where not even
// two do (wide x, or the columns of a large vocabulary on few multiprocessors), one by one.
static int launch_several(const ExlGemv &job, int dependent, cudaStream_t stream) {
    Card card;
    if (const cudaError_t error = ask_card(job, card)) return error;
    Way way = {0, card.major >= 9 && job.blocks % 2 == 0 && job.x_spans[1] > 0 ? 2 : 1, 1, 0, false};
    int passes = 1;
    while (passes < job.rows && !find_way(rows_of(job, 0, (job.rows + passes - 1) / passes), card, dependent, way)) passes++;
    const int alone = card.half() + Card::OVER_HALF;
    const bool by_itself = stands_alone(job, way.sharing, card);
    if (dependent && alone <= card.room && by_itself && way.helpers == 1) way.least = alone;
    // What reads halves stands behind attention, or goes by its own size.
    const bool room_beside = job.x_kind == EXL_X_HALF || !by_itself;
    for (int done = 0, left = passes; left > 0; left--) {
        const ExlGemv part = rows_of(job, done, (job.rows - done) / left);
        way.beside = dependent && done == 0 && room_beside && at_once(part.rows) == 2 && beside(part, way.depth, way.sharing, card);
        if (const int code = launch_way(part, way, dependent, stream)) return code;
        done += part.rows;
    }
    return 0;
}

}  // namespace exl

extern "C" int exl_gemv(const ExlGemv *job, int dependent, void *stream) {
    if (!job || !exl::job_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    return job->rows == 1 ? exl::launch_one<4>(*job, dependent, s) : exl::launch_several(*job, dependent, s);
}
