// The product of gemv.cuh that adds what all experts of a token give, each times its weight, to the residual.
//
// The rows of all of a token's experts are one column's, as if their matrices stood one on the other: a block takes column
// tiles of all of them, each warp the rows of one expert, and the sums of a column tile stand apart by experts until the end.
// The logits are known since the kernel before the last one, so that weights are asked for before the last one has ended. Places in
// an expert's weights become places behind those of the first expert in memory, and the rest is the ordinary product.
#include "choice.cuh"
#include "experts.cuh"
#include "gemv_launch.cuh"
#include "matrix.cuh"

namespace exl {

struct ExpertSum {
    Product product;
    const ExlExpert *table;
    const float *logits, *weights;
    const int *chosen;
    ExlChoice choice;
    int tiles;      // the most column tiles of a block
    int choice_at;  // a Choice, in bytes from the beginning of shared memory
};

// What has been chosen; by all threads.
__device__ __forceinline__ void take_choice(Choice &choice, const int *chosen, const float *weights, int slots) {
    const int t = threadIdx.x;
    if (t < slots) choice.chosen[t] = produced(chosen + t), choice.weights[t] = produced(weights + t);
    __syncthreads();
}

// The list of a warp as places in the weights of those chosen.
__device__ __forceinline__ void find_experts(const Product &job, const ExpertSum &all, Segment *list, const Choice &choice) {
#pragma unroll 1
    for (int i = threadIdx.x % LANES; i < job.segments; i += LANES) {
        Segment &segment = list[i];
        if (segment.pieces() == 0) continue;
        const ExlExpert *expert = all.table + choice.chosen[segment.column() / all.tiles];
        const auto behind = [](const uint32_t *const *p, const uint32_t *first) {
            return (int)(uint32_t)((__ldg(reinterpret_cast<const unsigned long long *>(p)) - (unsigned long long)first) / 16);
        };
        segment.codes += behind(&expert->words[0], job.words[0]);
        segment.scales += behind(&expert->scales[0], job.scales[0]);
    }
    __syncwarp();
}

struct TotalOfExperts {
    const Smem &s;
    const float *weights;
    int slots, tiles;

    __device__ __forceinline__ float operator()(int number, int column, int = 0) const {
        const RowTotal total = {s};
        float sum = 0.f;
#pragma unroll 2
        for (int slot = 0; slot < slots; slot++) sum = __fmaf_rn(weights[slot], total(slot * tiles + number, column), sum);
        return sum;
    }
};

template <int DEPTH>
__global__ void __launch_bounds__(THREADS, 2) gemv_expert_sum(const __grid_constant__ ExpertSum parameters) {
    EXL_ALIGNED_SHARED_MEMORY(memory, 128);
    char *base = reinterpret_cast<char *>(memory);
    let_next_start();
    const int t = threadIdx.x, warp = t / LANES, token = blockIdx.x, slots = parameters.choice.slots;
    const int32_t *plan = parameters.product.plan + (size_t)blockIdx.y * parameters.product.plan_ints;
    const int4 of_x = __ldg(reinterpret_cast<const int4 *>(plan + HEADER_INTS) + warp);
    const Smem s(base, parameters.product);
    const Chooser<THREADS> chooser(parameters.logits + (size_t)token * parameters.choice.stride,
                                   parameters.chosen ? 0 : parameters.choice.experts);
    if (!begin_block(parameters.product, plan, s)) {  // it only keeps its place
        wait_for_previous();
        return;
    }
    const Product &job = *s.job;
    Segment *list = s.lists + warp * job.segments;
    Choice &choice = *reinterpret_cast<Choice *>(base + parameters.choice_at);
    if (parameters.chosen) take_choice(choice, parameters.chosen + token * slots, parameters.weights + token * slots, slots);
    else chooser.choose(choice, slots);
    find_experts(job, parameters, list, choice);
    Ring<DEPTH> ring(job, list, base);
    if (job.early) ring.start();
    if (!parameters.chosen) chooser.weigh(choice, slots, parameters.choice.renormalised);
    if (t == 0) s.job->x = static_cast<const half *>(job.x) + (size_t)token * job.stored;
    const int mine = s.count(0);
    const bool any = t < mine * 16;
    const Output first(s, any ? t / 16 : 0, t % 16);
    Ahead ahead;
    if (any) ask_constants<false>(job, first, ahead);
    const Range range = {of_x.x, of_x.y, of_x.z};
    half *x = s.x + range.at;
    float *x_sums = s.x_sums + range.at / 32;
    __syncthreads();
    wait_for_previous();
    stage_halves<1, CREW<1>>(job, range, x, ring);
    if (any) ahead.hidden = ask_stream<false>(job, first, token, true).joined();
    __syncwarp();
    sum_blocks<1>(job, range, x, x_sums);
    __syncwarp();
    multiply_row(list, ring, lanes_x<1>(job, x), x_sums, s.sums + warp * 16);
    __syncthreads();
    const TotalOfExperts total = {s, choice.weights, slots, parameters.tiles};
    if (any) write_result<false>(job, total, first, mine, token, ahead);
#pragma unroll 1
    for (int i = t + THREADS; i < mine * 16; i += THREADS) {
        const Output o(s, i / 16, i % 16);
        ask_constants<false>(job, o, ahead);
        ahead.hidden = ask_stream<false>(job, o, token, true).joined();
        write_result<false>(job, total, o, mine, token, ahead);
    }
}

// As the ordinary kernel would be asked for it.
static ExlGemv of_all_slots(const ExlExpertSum &job) {
    ExlGemv one = {};
    one.plan = job.plan, one.x = job.x, one.matrix[0] = job.matrix, one.matrix[0].stored *= job.choice.slots;
    one.matrices = one.rows = 1, one.x_kind = EXL_X_HALF, one.y_kind = EXL_Y_ADD, one.residual = job.residual;
    one.blocks = job.blocks, one.columns = job.columns, one.plan_ints = job.plan_ints, one.segments = job.segments;
    one.x_rows = job.x_rows, one.room = job.room;
    return one;
}

template <int DEPTH> static ExpertSum sum_of_experts(const ExlExpertSum &job, const ExlGemv &one) {
    ExpertSum p = {};
    p.product = product_of(one, 1, DEPTH);
    p.table = job.table, p.logits = static_cast<const float *>(job.logits), p.choice = job.choice, p.tiles = job.tiles;
    p.chosen = static_cast<const int *>(job.chosen), p.weights = static_cast<const float *>(job.weights);
    p.choice_at = p.product.bytes, p.product.bytes += sizeof(Choice);
    return p;
}

// Of one token as launch_one has it. Of several as deep a ring as leaves room for two blocks on a multiprocessor.
template <int DEPTH>
static int launch_sum(const ExlExpertSum &job, const ExlGemv &one, int dependent, cudaStream_t stream) {
    Card card;
    if (const cudaError_t error = ask_card(one, card)) return error;
    ExpertSum p = sum_of_experts<DEPTH>(job, one);
    if constexpr (DEPTH > 1) {
        const int less = sum_of_experts<DEPTH - 1>(job, one).product.bytes, half = card.half();
        bool shorter = DEPTH == 4 && dependent && card.fits_shorter(p.product.bytes, less);
        if (job.tokens > 1) shorter = DEPTH > 2 && p.product.bytes > half && sum_of_experts<2>(job, one).product.bytes <= half;
        if (p.product.bytes > card.room || shorter) return launch_sum<DEPTH - 1>(job, one, dependent, stream);
    }
    if (p.product.bytes > card.room) return EXL_BAD_ARGUMENT;
    p.product.early = dependent;
    // Of one token no two blocks on a multiprocessor: those that the kernel before leaves empty would get two, and others none.
    const int alone = card.half() + Card::OVER_HALF;
    const bool pads = job.tokens == 1 && dependent && alone <= card.room && p.product.bytes < alone;
    // Neighbours are of other tokens: who has the same expert finds its weights in L2.
    return launch(gemv_expert_sum<DEPTH>, dim3(job.tokens, job.blocks), THREADS, pads ? alone : p.product.bytes, dependent, stream, p);
}

static bool sum_ok(const ExlExpertSum &job) {
    const ExlMatrix &m = job.matrix;
    if (!job.plan || !job.table || !job.logits || !job.x || !matrix_ok(m) || m.bias) return false;
    if (!job.chosen != !job.weights) return false;
    if (!choice_ok(job.choice.experts, job.choice.slots) || job.choice.stride < job.choice.experts) return false;
    if (job.tokens < 1 || job.tokens > EXL_MAX_ROWS || job.choice.slots > WARPS || m.stored % PIECE_ROWS) return false;
    if (reinterpret_cast<uintptr_t>(job.plan) % 16 || reinterpret_cast<uintptr_t>(job.table) % 16) return false;
    if (reinterpret_cast<uintptr_t>(job.x) % 16 || job.blocks < 1 || job.blocks > 65535 || job.tiles < 1 || job.columns != job.choice.slots * job.tiles) return false;
    if (job.segments < 2 || job.plan_ints % 4 || job.plan_ints < HEADER_INTS + WARPS * 4 * (1 + job.segments)) return false;
    if (job.x_rows < 1 || job.room < 0 || job.residual.columns != m.column_tiles * 16) return false;
    return residual_ok(job.residual) && !job.residual.delta && !job.residual.peers;
}

}  // namespace exl

extern "C" int exl_expert_sum(const ExlExpertSum *job, int dependent, void *stream) {
    if (!job || !exl::sum_ok(*job)) return EXL_BAD_ARGUMENT;
    return exl::launch_sum<4>(*job, exl::of_all_slots(*job), dependent, static_cast<cudaStream_t>(stream));
}
