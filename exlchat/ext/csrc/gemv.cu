// The C entry: checks, then the kernel for one row or for several.
#include "gemv_launch.cuh"

namespace exl {

extern template int launch_one<4>(const ExlGemv &, int, cudaStream_t);
#define EXL_ELSEWHERE(ROWS)                                                      \
    extern template int launch_rows<ROWS, 2>(const ExlGemv &, int, cudaStream_t); \
    extern template int launch_rows<ROWS, 3>(const ExlGemv &, int, cudaStream_t); \
    extern template int launch_rows<ROWS, 4>(const ExlGemv &, int, cudaStream_t);
EXL_ELSEWHERE(2)
EXL_ELSEWHERE(4)
EXL_ELSEWHERE(8)
#undef EXL_ELSEWHERE

// Copies go by 16 bytes.
static bool aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool matrix_ok(const ExlMatrix &m) {
    int pieces = 0, word = 0, scale = 0;
    if (!aligned(m.words) || !aligned(m.scales)) return false;
    if (!m.words || !m.scales || !m.gather || m.section_count < 1 || m.section_count > EXL_MAX_SECTIONS) return false;
    if (m.features < 1 || m.stored < m.features || m.stored % 32 || m.stored > 65535 || m.column_tiles < 1) return false;
    for (int i = 0; i < m.section_count; i++) {
        const ExlSection &s = m.sections[i];
        const bool width = s.bits == 2 || s.bits == 3 || s.bits == 4 || s.bits == 5 || s.bits == 6 || s.bits == 8;
        const bool step = s.rows_per_scale == 32 || s.rows_per_scale == 64 || s.rows_per_scale == 128;
        if (!width || !step || (s.plain && s.bits != 4) || s.piece != pieces || s.word != word || s.pieces < 1) return false;
        // The last piece begins inside the matrix: x has zeros for one that ends beyond it.
        if (s.row % 32 || s.row < 0 || s.row >= m.stored || s.pieces > (m.stored - s.row + 127) / 128) return false;
        const int scale_bytes = (s.plain ? 40 : 10) * (128 / s.rows_per_scale);
        if (s.piece_words != 64 * s.bits || s.scale != scale || s.scale_words != (scale_bytes + 15) / 16 * 4) return false;
        pieces += s.pieces, word += s.pieces * s.piece_words, scale += s.pieces * s.scale_words;
    }
    return pieces == m.pieces && word == m.words_per_column && scale == m.scale_words_per_column;
}

bool residual_ok(const ExlResidual &r) {
    if (!r.hidden || !r.squares) return false;
    for (const ExlNormCopy &copy : r.copies)
        if (copy.values && (!copy.scatter || !copy.weight)) return false;
    return true;
}

static bool job_ok(const ExlGemv &job) {
    if (job.matrices < 1 || job.matrices > EXL_MAX_MATRICES || job.rows < 1 || job.rows > EXL_MAX_ROWS) return false;
    if (!job.x || !job.plan || job.blocks < 1 || job.columns < 1 || job.x_rows < 1) return false;
    if (job.segments < 2 || job.plan_ints % 4 || job.room < 0) return false;
    if (job.plan_ints < 8 + EXL_WARPS * 4 * (1 + job.segments)) return false;
    if (job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_NORM || job.y_kind < EXL_Y_HALF || job.y_kind > EXL_Y_ACTIVATED) return false;
    if (!is_activation(job.activation)) return false;
    if (job.x_kind == EXL_X_NORM && (!job.squares || job.width < 16 || job.width % 16)) return false;
    if (job.y_kind == EXL_Y_ADD ? !residual_ok(job.residual) : !job.y || job.y_stride < 1) return false;
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
    part.x = static_cast<const char *>(job.x) + (size_t)first * job.matrix[0].stored * (job.x_kind == EXL_X_NORM ? 4 : 2);
    if (job.x_kind == EXL_X_NORM) part.squares = job.squares + (size_t)first * (job.width / 16);
    if (job.y_kind != EXL_Y_ADD) {
        part.y = static_cast<char *>(job.y) + (size_t)first * job.y_stride * (job.y_kind == EXL_Y_FLOAT ? 4 : 2);
        return part;
    }
    part.residual.hidden += first * job.residual.columns;
    part.residual.squares += first * (job.residual.columns / 16);
    for (ExlNormCopy &copy : part.residual.copies)
        if (copy.values) copy.values += first * copy.stored;
    return part;
}

static int at_once(int rows) { return rows <= 2 ? 2 : (rows <= 4 ? 4 : 8); }

// How deep a ring the kernel of several rows gets, or 0 where there is no room: as deep as there is, but one slot less
// where blocks of two kernels then fit a multiprocessor together, as for one row.
static int depth_of(const ExlGemv &job, int room, int of_sm, int dependent) {
    const int deepest = product_of(job, at_once(job.rows), 4).bytes, middle = product_of(job, at_once(job.rows), 3).bytes;
    const int half = of_sm / 2 - 1024;
    if (deepest <= room && !(dependent && deepest > half && middle <= half)) return 4;
    if (middle <= room) return 3;
    return product_of(job, at_once(job.rows), 2).bytes <= room ? 2 : 0;
}

template <int DEPTH> static int launch_depth(const ExlGemv &job, int dependent, cudaStream_t stream) {
    if (job.rows == 1) return launch_one<4>(job, dependent, stream);
    switch (at_once(job.rows)) {
        case 2: return launch_rows<2, DEPTH>(job, dependent, stream);
        case 4: return launch_rows<4, DEPTH>(job, dependent, stream);
        default: return launch_rows<8, DEPTH>(job, dependent, stream);
    }
}

// Several rows, as many at a time as fit: fewer passes over the weights are worth more than a deep ring. Where not even
// two do (wide x, or the columns of a large vocabulary on few multiprocessors), one by one.
static int launch_several(const ExlGemv &job, int dependent, cudaStream_t stream) {
    int device = 0, room = 0, of_sm = 0, passes = 1, depth = 0;
    cudaError_t error = find_room(job, room);
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (error != cudaSuccess) return error;
    for (; passes < job.rows; passes++)
        if ((depth = depth_of(rows_of(job, 0, (job.rows + passes - 1) / passes), room, of_sm, dependent))) break;
    for (int done = 0, left = passes; left > 0; left--) {
        const ExlGemv part = rows_of(job, done, (job.rows - done) / left);
        const int code = depth == 4   ? launch_depth<4>(part, dependent, stream)
                         : depth == 3 ? launch_depth<3>(part, dependent, stream)
                                      : launch_depth<2>(part, dependent, stream);
        if (code) return code;
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
