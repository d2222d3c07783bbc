// The C entry of products of chosen experts that are quantized.
#include "gemv_experts.cuh"
#include "matrix.cuh"

namespace exl {

// The product of one slot as the ordinary kernel would be asked for it.
static ExlGemv of_a_slot(const ExlExpertProduct &job) {
    ExlGemv one = {};
    one.plan = job.plan, one.x = job.x, one.y = job.y;
    for (int i = 0; i < job.matrices; i++) one.matrix[i] = job.matrix[i];
    one.matrices = job.matrices, one.rows = 1, one.y_kind = job.y_kind;
    one.x_kind = job.squares ? EXL_X_NORM : EXL_X_HALF, one.squares = static_cast<const float *>(job.squares);
    one.eps = job.eps, one.width = job.matrix[0].features;
    one.y_stride = job.y_stride, one.activation = job.activation, one.blocks = job.blocks, one.columns = job.columns;
    one.plan_ints = job.plan_ints, one.segments = job.segments, one.x_rows = job.x_rows, one.room = job.room;
    return one;
}

template <int DEPTH> static ExpertProduct product_of_experts(const ExlExpertProduct &job, const ExlGemv &one) {
    ExpertProduct p = {};
    p.product = product_of(one, 1, DEPTH);
    p.table = job.table, p.chosen = static_cast<const int *>(job.chosen), p.limit = job.limit;
    p.experts = job.experts, p.slots = job.slots, p.blocks = job.blocks;
    p.x_slots = job.x_slots, p.x_stride = job.x_stride;
    p.gathered = job.gathered != 0, p.features = job.matrix[0].features;
    p.logits = static_cast<const float *>(job.logits), p.choice = job.choice;
    p.features_at = p.product.bytes;
    if (p.gathered) p.product.bytes += align16(p.features * 2);
    p.choice_at = p.product.bytes;
    if (p.logits) p.product.bytes += sizeof(Choice);
    return p;
}

// The deepest ring that fits; where the next kernel's blocks start early, one less if they fit beside it then, as
// launch_one has it. At least a block for every multiprocessor, for the reason that plan.py gives.
template <int DEPTH>
static int launch_experts(const ExlExpertProduct &job, const ExlGemv &one, int dependent, cudaStream_t stream) {
    Card card;
    if (const cudaError_t error = ask_card(one, card)) return error;
    ExpertProduct p = product_of_experts<DEPTH>(job, one);
    if constexpr (DEPTH > 1) {
        const int less = product_of_experts<DEPTH - 1>(job, one).product.bytes;
        const bool shorter = DEPTH == 4 && dependent && card.fits_shorter(p.product.bytes, less);
        if (p.product.bytes > card.room || shorter) return launch_experts<DEPTH - 1>(job, one, dependent, stream);
    }
    if (p.product.bytes > card.room) return EXL_BAD_ARGUMENT;
    p.across = job.blocks * job.slots > card.processors;
    const int rows = (card.processors + job.blocks - 1) / job.blocks;
    const dim3 grid = p.across ? dim3(job.slots, job.blocks) : dim3(job.blocks, job.slots > rows ? job.slots : rows);
    return launch(gemv_experts<DEPTH>, grid, THREADS, p.product.bytes, dependent, stream, p);
}

static bool experts_ok(const ExlExpertProduct &job) {
    if (!job.chosen == !job.logits) return false;
    if (!job.plan || !job.table || job.experts < 1 || job.matrices < 1 || job.matrices > EXL_EXPERT_MATRICES || !slots_ok(job)) return false;
    if (reinterpret_cast<uintptr_t>(job.plan) % 16 || reinterpret_cast<uintptr_t>(job.table) % 16) return false;
    if (job.blocks < 1 || job.blocks > 65535 || job.columns < 1 || job.x_rows < 1 || job.room < 0) return false;
    if (job.segments < 2 || job.plan_ints % 4 || job.plan_ints < 8 + EXL_WARPS * 4 * (1 + job.segments)) return false;
    for (int i = 0; i < job.matrices; i++) {
        const ExlMatrix &m = job.matrix[i], &first = job.matrix[0];
        if (!matrix_ok(m) || m.stored != first.stored || m.features != first.features) return false;
        if (m.column_tiles != first.column_tiles) return false;
    }
    const ExlChoice &choice = job.choice;
    if (job.logits && (!choice_ok(choice.experts, choice.slots) || choice.stride < choice.experts || job.slots % choice.slots)) return false;
    if (job.logits && choice.experts > job.experts) return false;
    if (job.squares && (!job.gathered || job.matrix[0].features % 16)) return false;
    if (job.x_slots < job.slots && job.x_stride < (job.gathered ? job.matrix[0].features : job.matrix[0].stored)) return false;
    return job.y_stride >= job.matrix[0].column_tiles * 16;
}

}  // namespace exl

extern "C" int exl_expert_product(const ExlExpertProduct *job, int dependent, void *stream) {
    if (!job || !exl::experts_ok(*job)) return EXL_BAD_ARGUMENT;
    return exl::launch_experts<4>(*job, exl::of_a_slot(*job), dependent, static_cast<cudaStream_t>(stream));
}
