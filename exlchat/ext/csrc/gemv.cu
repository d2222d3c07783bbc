// The C entry: checks, then the kernel for one row or for up to eight.
#include "activation.cuh"

#include <cuda_runtime.h>

namespace exl {

template <int ROWS, int DEPTH> int launch_gemv(const ExlGemv &job, int dependent, cudaStream_t stream);
template <int DEPTH> int launch_one(const ExlGemv &job, int dependent, cudaStream_t stream);

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
    if (job.matrices < 1 || job.matrices > EXL_MAX_MATRICES || job.rows < 1 || job.rows > 8) return false;
    if (!job.x || !job.plan || job.blocks < 1 || job.columns < 1 || job.x_rows < 1) return false;
    if (job.segments < 2 || job.plan_ints % 4 || job.room < 0) return false;
    if (job.plan_ints < 8 + EXL_WARPS * 4 * (1 + job.segments)) return false;
    if (job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_NORM || job.y_kind < EXL_Y_HALF || job.y_kind > EXL_Y_ACTIVATED) return false;
    if (!is_activation(job.activation)) return false;
    if (job.x_kind == EXL_X_NORM && (job.rows != 1 || !job.squares || job.width < 16 || job.width % 16)) return false;
    if (job.y_kind == EXL_Y_ADD ? job.rows != 1 || !residual_ok(job.residual) : !job.y || job.y_stride < 1) return false;
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
    return job.y_kind == EXL_Y_ADD || job.y_stride >= columns;
}

// Several rows one by one, where what eight add up leaves no room for x: wide x, or the columns of a large vocabulary
// on few multiprocessors.
static int launch_singly(const ExlGemv &job, int dependent, cudaStream_t stream) {
    for (int row = 0; row < job.rows; row++) {
        ExlGemv one = job;
        one.rows = 1;
        one.x = static_cast<const char *>(job.x) + (size_t)row * job.matrix[0].stored * 2;
        one.y = static_cast<char *>(job.y) + (size_t)row * job.y_stride * (job.y_kind == EXL_Y_FLOAT ? 4 : 2);
        const int code = launch_one<4>(one, dependent, stream);
        if (code) return code;
    }
    return 0;
}

}  // namespace exl

extern "C" int exl_gemv(const ExlGemv *job, int dependent, void *stream) {
    if (!job || !exl::job_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (job->rows == 1) return exl::launch_one<4>(*job, dependent, s);
    const int code = exl::launch_gemv<8, 4>(*job, dependent, s);
    return code == EXL_BAD_ARGUMENT ? exl::launch_singly(*job, dependent, s) : code;
}
