// The C entry: checks, then the kernel for one row or for up to eight.
#include "exlchat.h"

#include <cuda_runtime.h>

namespace exl {

template <int ROWS> int launch_gemv(const ExlGemv &job, int dependent, cudaStream_t stream);

static bool matrix_ok(const ExlMatrix &m, int features) {
    int tiles = 0;
    if (!m.words || !m.scale_index || !m.scale_max || !m.gather) return false;
    if (m.section_count < 1 || m.section_count > EXL_MAX_SECTIONS || m.features != features || m.features % 8) return false;
    for (int i = 0; i < m.section_count; i++) {
        const ExlSection &s = m.sections[i];
        const bool width = s.bits == 2 || s.bits == 3 || s.bits == 4 || s.bits == 5 || s.bits == 6 || s.bits == 8;
        const bool step = s.rows_per_scale == 32 || s.rows_per_scale == 64 || s.rows_per_scale == 128;
        if (!width || !step || s.tile != tiles || s.tiles < 2 || s.tiles % 2 || s.scale % 4) return false;
        tiles += s.tiles;
    }
    return tiles == m.tiles && m.column_tiles > 0 && m.scales % 4 == 0;
}

static bool job_ok(const ExlGemv &job) {
    if (job.matrices < 1 || job.matrices > EXL_MAX_MATRICES || job.rows < 1 || job.rows > 8) return false;
    if (!job.x || !job.y || job.x_kind < EXL_X_HALF || job.x_kind > EXL_X_NORM || job.y_kind < EXL_Y_HALF ||
        job.y_kind > EXL_Y_FLOAT)
        return false;
    if (job.x_kind == EXL_X_NORM && (job.rows != 1 || !job.norm)) return false;
    if (job.y_kind == EXL_Y_GATED &&
        (job.matrices != 2 || job.matrix[0].column_tiles != job.matrix[1].column_tiles))
        return false;
    for (int i = 0; i < job.matrices; i++)
        if (!matrix_ok(job.matrix[i], job.matrix[0].features)) return false;
    return true;
}

}  // namespace exl

extern "C" int exl_gemv(const ExlGemv *job, int dependent, void *stream) {
    if (!job || !exl::job_ok(*job)) return EXL_BAD_ARGUMENT;
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    return job->rows == 1 ? exl::launch_gemv<1>(*job, dependent, s) : exl::launch_gemv<8>(*job, dependent, s);
}
