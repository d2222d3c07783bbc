// The C entry: checks, then the kernel for one row or for up to eight.
#include "exlchat.h"

#include <cuda_runtime.h>

namespace exl {

template <int ROWS, int DEPTH> int launch_gemv(const ExlGemv &job, int dependent, cudaStream_t stream);

bool matrix_ok(const ExlMatrix &m) {
    int pieces = 0, word = 0, scale = 0;
    if (!m.words || !m.scales || !m.gather || m.section_count < 1 || m.section_count > EXL_MAX_SECTIONS) return false;
    if (m.features < 1 || m.stored < m.features || m.stored % 32 || m.stored > 65535 || m.column_tiles < 1) return false;
    for (int i = 0; i < m.section_count; i++) {
        const ExlSection &s = m.sections[i];
        const bool width = s.bits == 2 || s.bits == 3 || s.bits == 4 || s.bits == 5 || s.bits == 6 || s.bits == 8;
        const bool step = s.rows_per_scale == 32 || s.rows_per_scale == 64 || s.rows_per_scale == 128;
        if (!width || !step || (s.plain && s.bits != 4) || s.piece != pieces || s.word != word || s.pieces < 1) return false;
        if (s.row % 32 || s.row < 0 || s.row >= m.stored) return false;
        if (s.piece_words != 64 * s.bits || s.scale != scale) return false;
        if (s.scale_words % 4 || s.scale_words < 4 || s.scale_words > 40) return false;
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
    if (!job.x || !job.plan || job.blocks < 1 || job.columns < 1) return false;
    if (job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_NORM || job.y_kind < EXL_Y_HALF || job.y_kind > EXL_Y_FLOAT) return false;
    if (job.x_kind == EXL_X_NORM && (job.rows != 1 || !job.squares || job.width < 16 || job.width % 16)) return false;
    if (job.y_kind == EXL_Y_ADD ? job.rows != 1 || !residual_ok(job.residual) : !job.y || job.y_stride < 1) return false;
    if (job.y_kind == EXL_Y_GATED && (job.matrices != 2 || job.matrix[0].column_tiles != job.matrix[1].column_tiles))
        return false;
    for (int i = 0; i < job.matrices; i++)
        if (!matrix_ok(job.matrix[i]) || job.matrix[i].stored != job.matrix[0].stored) return false;
    return true;
}

}  // namespace exl

extern "C" int exl_gemv(const ExlGemv *job, int dependent, void *stream) {
    if (!job || !exl::job_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    return job->rows == 1 ? exl::launch_gemv<1, 4>(*job, dependent, s) : exl::launch_gemv<8, 4>(*job, dependent, s);
}
