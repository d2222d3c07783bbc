// The C entry of products with many rows: checks, x into stored order, the kernel for as many rows a pass.
#include "gemm.cuh"
#include "matrix.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

namespace exl {

constexpr int MAX_TILES = 8;  // of 8 rows, in a pass
static_assert(MOST_PAIRED_TILES * 8 == EXL_GEMM_PAIRED_ROWS, "");
static_assert(EXL_GEMM_BLOCK_BYTES == WARP_TILES * MAX_TILES * MULTIPLY_THREADS * sizeof(float4), "");

extern template int launch_gemm<2>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
extern template int launch_gemm<4>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
extern template int launch_gemm<6>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
extern template int launch_gemm<7>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
extern template int launch_gemm<8>(const ExlGemm &, const GemmUnits &, const GemmShape &, cudaStream_t);
extern template int gemm_clusters<MAX_TILES>(int, int);

static bool job_ok(const ExlGemm &job) {
    if (job.matrices < 1 || job.matrices > EXL_MAX_MATRICES || job.blocks < 1) return false;
    if (job.rows < 1 || job.rows > EXL_GEMM_MAX_ROWS || job.room < 0) return false;
    if (!job.x || !job.y || !job.partial || !job.arrived) return false;
    if (!aligned(job.x) || !aligned(job.partial)) return false;
    int64_t columns = 0;
    for (int i = 0; i < job.matrices; i++) {
        const ExlMatrix &m = job.matrix[i];
        if (!matrix_ok(m) || m.stored != job.matrix[0].stored || m.features != job.matrix[0].features) return false;
        columns += m.column_tiles * (int64_t)16;
    }
    if (!aligned(job.matrix[0].gather)) return false;
    return job.y_stride >= columns && job.y_stride % 2 == 0 && reinterpret_cast<uintptr_t>(job.y) % 4 == 0;
}

union EightHalves {
    uint4 words;
    half values[8];
};

constexpr int ORDER_THREADS = 512, ORDER_BYTES = 48 * 1024;

// `mma` takes what a lane reads at once as rows 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of two operands; `wgmma` reads rows where
// they stand: of 32 those that four threads would have are dealt out among them, by pairs.
__device__ __forceinline__ int place_in_x(int stored, bool by_groups) {
    return EXL_WGMMA && by_groups ? (stored & ~30) | (stored & 6) << 2 | (stored >> 2 & 6) : stored;
}

// Eight stored rows a thread, out of one row of x, which comes to shared memory first where it fits: a layer of an 8B
// with 64 rows takes 12 us less than with two bytes from anywhere in L1.
__global__ void __launch_bounds__(ORDER_THREADS)
    to_stored(const half *x, const uint16_t *gather, half *stored_x, int features, int stored, bool fits,
              bool by_groups) {
    EXL_SHARED_MEMORY(row_memory);
    half *copy = reinterpret_cast<half *>(row_memory);
    let_next_start();
    const half *row = x + (size_t)blockIdx.y * features;
    const int at = (blockIdx.x * ORDER_THREADS + threadIdx.x) * 8;
    uint4 places = {~0u, ~0u, ~0u, ~0u};
    if (at < stored && EXL_WGMMA && by_groups) {
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(gather + at / 32 * 32) + at / 8 % 4;
        places = {pairs[0], pairs[4], pairs[8], pairs[12]};
    } else if (at < stored) {
        places = *reinterpret_cast<const uint4 *>(gather + at);
    }
    wait_for_previous();
    if (fits) {
        for (int i = threadIdx.x; i < features / 8; i += ORDER_THREADS) copy16(copy + i * 8, row + i * 8);
        end_of_copies();
    }
    wait_for_copies<0>();
    __syncthreads();
    if (at >= stored) return;
    EightHalves out;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t pair = reinterpret_cast<const uint32_t *>(&places)[i / 2];
        const int feature = i % 2 ? pair >> 16 : pair & 0xffffu;
        out.values[i] = feature >= features ? __float2half_rn(0.f) : fits ? copy[feature] : produced(row + feature);
    }
    *reinterpret_cast<uint4 *>(stored_x + (size_t)blockIdx.y * stored + at) = out.words;
}

__global__ void __launch_bounds__(ORDER_THREADS)
    gemm_permutation(const uint16_t *gather, uint16_t *permutation, int features, int stored, bool by_groups) {
    const int at = blockIdx.x * ORDER_THREADS + threadIdx.x;
    wait_for_previous();
    if (at < stored && gather[at] < features) permutation[gather[at]] = place_in_x(at, by_groups);
}

static int gather_x(const ExlGemm &job, int tiles, cudaStream_t stream) {
    const ExlMatrix &m = job.matrix[0];
    const dim3 grid((m.stored + ORDER_THREADS * 8 - 1) / (ORDER_THREADS * 8), job.rows);
    const bool fits = m.features * 2 <= ORDER_BYTES && m.features % 8 == 0 && aligned(job.x_features);
    return launch(to_stored, grid, ORDER_THREADS, fits ? m.features * 2 : 0, 1, stream,
                  static_cast<const half *>(job.x_features), m.gather, static_cast<half *>(job.x), m.features, m.stored,
                  fits, tiles > MOST_PAIRED_TILES);
}

// Clusters of so many blocks that the card runs beside each other, a block to a multiprocessor; asked for once.
static int clusters_of_card(int size) {
    constexpr int MOST_CARDS = 64;
    static std::atomic<int> known[MOST_CARDS][MOST_CLUSTER + 1];  // and 1
    int device = 0, room = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device >= MOST_CARDS) return 0;
    if (const int found = known[device][size]) return found - 1;
    if (cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) return 0;
    const int count = gemm_clusters<MAX_TILES>(size, room);
    known[device][size] = count + 1;
    return count;
}

// How rows are cut into passes, work into units and shared memory into slots.
struct GemmCut {
    int tiles;  // of 8 rows, in a pass
    GemmUnits units;
    GemmShape shape;

    void make(const ExlGemm &job, int most_tiles) {
        const int all = (job.rows + 7) / 8;
        units.passes = (all + most_tiles - 1) / most_tiles;
        tiles = (all + units.passes - 1) / units.passes;
        if (tiles != 7) tiles = (tiles + 1) / 2 * 2;
        units.first[0] = shape.code_bytes = shape.scale_bytes = 0;
        for (int i = 0; i < EXL_MAX_MATRICES; i++) {
            const ExlMatrix &m = job.matrix[i];
            const int mine = i < job.matrices ? (m.column_tiles + GROUP_TILES - 1) / GROUP_TILES * units.passes : 0;
            units.first[i + 1] = units.first[i] + (mine ? mine * m.pieces : 0);
            for (int n = 0; mine && n < m.section_count; n++) {
                shape.code_bytes = std::max(shape.code_bytes, m.sections[n].piece_words * 4);
                shape.scale_bytes = std::max(shape.scale_bytes, m.sections[n].scale_words * 4);
            }
        }
        units.blocks = std::min(job.blocks, units.total());
        units.each = units.total() / units.blocks, units.more = units.total() % units.blocks;
        units.cluster = 1;
        const int bytes = tiles * 8 * X_BYTES + GROUP_TILES * (shape.code_bytes + shape.scale_bytes);
        shape.slot = (bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    }
    // As many slots as there is room for, and so few rows that there is room for two if that is possible.
    bool fit(const ExlGemm &job, int room, int major) {
        shape.job_bytes = major == 9 ? (int)sizeof(ExlGemm) : 0;
        for (int most = MAX_TILES; most >= 2; most -= 2) {
            make(job, most);
            shape.stages = std::min(most_stages(tiles), (room - shape.job_bytes) / shape.slot);
            if (shape.stages >= 2) break;
        }
        cut_for_clusters(job);
        return shape.stages >= 1;
    }
    // Blocks of a cluster share a group where that takes less time than runs that begin anywhere: sums of those go through
    // L2, which takes as long as three pieces of up to 16 rows and six of more (one H200).
    void cut_for_clusters(const ExlGemm &job) {
        if (shape.stages * shape.slot < GROUP_TILES * tiles * LANES * (int)sizeof(float4)) return;
        int groups = 0, least = job.matrix[0].pieces, most = least;
        for (int i = 0; i < job.matrices; i++) {
            const int pieces = job.matrix[i].pieces;
            groups += (units.first[i + 1] - units.first[i]) / pieces;
            least = std::min(least, pieces), most = std::max(most, pieces);
        }
        int best = (units.total() + units.blocks - 1) / units.blocks + (tiles > MOST_PAIRED_TILES ? 6 : 3);
        for (int n = 2; n <= std::min(MOST_CLUSTER, least) && groups * n <= job.blocks; n++)
            if ((most + n - 1) / n < best && groups <= clusters_of_card(n)) units.cluster = n, best = (most + n - 1) / n;
        if (units.cluster > 1) units.blocks = groups * units.cluster;
    }
};

static int multiply(const ExlGemm &job, const GemmCut &cut, cudaStream_t stream) {
    switch (cut.tiles) {
        case 2: return launch_gemm<2>(job, cut.units, cut.shape, stream);
        case 4: return launch_gemm<4>(job, cut.units, cut.shape, stream);
        case 6: return launch_gemm<6>(job, cut.units, cut.shape, stream);
        case 7: return launch_gemm<7>(job, cut.units, cut.shape, stream);
        default: return launch_gemm<8>(job, cut.units, cut.shape, stream);
    }
}

}  // namespace exl

static int cut_of(const ExlGemm *job, exl::GemmCut &cut, int &major) {
    if (!job || !exl::job_ok(*job)) return EXL_BAD_ARGUMENT;
    int device = 0, room = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error != cudaSuccess) return error;
    if (job->room) room = std::min(room, (int)job->room);
    return cut.fit(*job, room, major) ? 0 : EXL_BAD_ARGUMENT;
}

extern "C" int exl_gemm(const ExlGemm *job, void *stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    exl::GemmCut cut = {};
    int major = 0;
    if (const int code = cut_of(job, cut, major)) return code;
    if (!job->x_features) {
        // Only Hopper reads x in another order where there are many rows.
        const bool as_told = major != 9 || (cut.tiles > exl::MOST_PAIRED_TILES) == (job->rows > EXL_GEMM_PAIRED_ROWS);
        return as_told ? exl::multiply(*job, cut, s) : EXL_BAD_ARGUMENT;
    }
    const int code = exl::gather_x(*job, cut.tiles, s);
    return code ? code : exl::multiply(*job, cut, s);
}

extern "C" int exl_gemm_permutation(const ExlGemm *job, void *permutation, void *stream) {
    if (!job || !permutation || job->matrices < 1 || job->rows < 1 || !exl::matrix_ok(job->matrix[0])) return EXL_BAD_ARGUMENT;
    const ExlMatrix &m = job->matrix[0];
    return exl::launch(exl::gemm_permutation, (m.stored + exl::ORDER_THREADS - 1) / exl::ORDER_THREADS, exl::ORDER_THREADS, 0,
                       0, static_cast<cudaStream_t>(stream), m.gather, static_cast<uint16_t *>(permutation), m.features,
                       m.stored, job->rows > EXL_GEMM_PAIRED_ROWS);
}
