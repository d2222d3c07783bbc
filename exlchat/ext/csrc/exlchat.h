/* The C face of the CUDA kernels. Everything is device memory unless it says otherwise; nothing here allocates or
   synchronises. Every function returns 0, a cudaError_t, or a negative EXL_ code; exl_error_text explains either. */
#ifndef EXLCHAT_H
#define EXLCHAT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXL_ABI_VERSION 14
#define EXL_MAX_SECTIONS 6
#define EXL_MAX_MATRICES 3

#define EXL_BAD_ARGUMENT -1

typedef struct {
    int32_t bits, plain, rows_per_scale, row, piece, pieces, word, piece_words, scale, scale_words;
} ExlSection;

/* A quantized matrix as exlchat/ext/layout.py packs it. */
typedef struct {
    const uint32_t *words;  /* [column_tiles][words_per_column] */
    const uint32_t *scales; /* [column_tiles][scale_words_per_column] */
    const uint16_t *gather; /* [stored], 65535 for rows without a feature */
    const void *bias;       /* half [column_tiles * 16] or null */
    int32_t features, stored, column_tiles, words_per_column, scale_words_per_column, pieces, section_count;
    ExlSection sections[EXL_MAX_SECTIONS];
} ExlMatrix;

/* What a residual leaves for the product after it: its values times the weights of a norm, in the stored order of that
   product's matrices, still to be divided by the root mean square. */
typedef struct {
    float *values;           /* [rows][stored], null where there is no such product; with `delta` [rows][stored][2] */
    const uint16_t *scatter; /* [columns] */
    const void *weight;      /* half [columns], or null: all 1 */
    int64_t stored;          /* from a row of values to the next */
} ExlNormCopy;

#define EXL_MAX_CARDS 8

/* How one of several cards that compute every layer together reaches the others; in memory of that card.
   inbox: [2][cards][words], of this card or of the machine, zero at first: what the others have sent.
   outbox: of each other card its inbox.
   state: [2] of this card: exchanges so far, and whether one has failed.
   trouble: a word of the machine's memory: 1 + the card that has sent nothing for `patience` nanoseconds. */
typedef struct {
    uint64_t *inbox;
    uint64_t *outbox[EXL_MAX_CARDS];
    uint32_t *state;
    uint32_t *trouble;
    uint64_t patience;
    int32_t card, cards, words;
} ExlPeers;

/* hidden += multiplier * what is added.
   delta: null, or a norm stands behind what is added, of which nobody knows the root mean square until all of it is there:
   the stream is hidden + delta * scale. Who adds makes hidden that, and delta what it adds times multiplier and post_norm;
   values are then pairs of both. scale: [rows], 1 over that root mean square, from who has read the stream (EXL_X_JOIN).
   squares: sums of 16 columns each: of squares of hidden; with `delta` four: of squares of hidden, of hidden * delta, of
   squares of delta, of squares of what is added itself.
   peers: null, or sums are over all cards: what is added is exchange number `exchange` behind those that have been
   counted, the first row at its word `word`. */
typedef struct {
    float *hidden;  /* [rows][columns] */
    float *squares; /* [rows][columns / 16], with `delta` [rows][columns / 16][4] */
    float *delta;   /* [rows][columns] */
    const float *scale;
    const void *post_norm; /* half [columns] */
    ExlNormCopy copies[EXL_MAX_MATRICES];
    int64_t columns;
    float multiplier;
    const ExlPeers *peers;
    int32_t exchange, word;
} ExlResidual;

enum { EXL_X_HALF = 0, EXL_X_NORM = 1, EXL_X_JOIN_NORM = 2, EXL_X_JOIN = 3 };
enum { EXL_Y_HALF = 0, EXL_Y_ADD = 1, EXL_Y_GATED = 2, EXL_Y_FLOAT = 3, EXL_Y_ACTIVATED = 4 };
enum { EXL_SILU = 0, EXL_GELU_TANH = 1, EXL_GELU_ERF = 2 };

/* y = x W for up to three matrices that read the same x, their columns one behind the other. A row of y is the same to
   the last bit however many rows there are.
   x:  EXL_X_HALF   half [rows][stored]
       EXL_X_NORM   float [rows][stored], divided by the root mean square that `squares`, [rows][width / 16], tells
       EXL_X_JOIN   float [rows][stored][2], pairs (v, d) that a residual with `delta` has left: v + d * scale, where scale is
                    1 over the root mean square of what was added, which `squares`, [rows][width / 16][4], tells, and is
                    left in `scale`, [rows], for who adds next
       EXL_X_JOIN_NORM  the same, divided by the root mean square of the stream
   y:  EXL_Y_HALF   half [rows][y_stride]
       EXL_Y_FLOAT  float [rows][y_stride]
       EXL_Y_ADD    residual
       EXL_Y_GATED  half [rows][y_stride], activation(first) * second of exactly two matrices of equal width, at
                    scatter[column] where there is a scatter
       EXL_Y_ACTIVATED  half [rows][y_stride], activation(x W), at scatter[column] where there is a scatter
   plan: what every block and warp takes, made and explained by exlchat/ext/plan.py: int32 [blocks][plan_ints], a
   multiple of four, with room for `segments` segments a warp.
   A block takes at most `columns` column tiles of all matrices together, and its warps read at most `x_rows` rows of x,
   counted once a warp. x_spans: the most rows from the first to the last that all warps of a block read, and that the first
   or the last half of the warps of two neighbouring blocks do; the second is 0 where blocks are not to be paired.
   room: bytes of shared memory that a block may take; 0: all there is. */
typedef struct {
    const int32_t *plan;
    ExlMatrix matrix[EXL_MAX_MATRICES];
    const void *x;
    const float *squares;
    float *scale;
    void *y;
    const uint16_t *scatter;
    ExlResidual residual;
    float eps; /* of the norm before, and of the one behind what was added */
    int32_t width; /* of the normed vector; a multiple of 16 */
    int32_t matrices, rows, x_kind, y_kind, y_stride, activation;
    int32_t blocks, columns, plan_ints, segments, x_rows, x_spans[2], room;
} ExlGemv;

#define EXL_WARPS 8

int exl_abi_version(void);
const char *exl_error_text(int code);

/* The CUDA that this was made with, 13000 for 13.0. */
int exl_cuda_version(void);

/* 0 if the current card can run this library; cudaErrorInsufficientDriver or cudaErrorNoKernelImageForDevice if not. */
int exl_card_status(void);

#define EXL_MAX_ROWS 8
#define EXL_WIDE_ROWS 128

/* rows: 1 to EXL_MAX_ROWS. dependent: launch with programmatic stream serialization (sm_90 and later). */
int exl_gemv(const ExlGemv *job, int dependent, void *stream);

/* y half [rows][y_stride] = x W + b for 1 to EXL_GEMM_MAX_ROWS rows and up to three matrices that read the same x, their
   columns one behind the other; made for 9 rows up to some hundred. y_stride: even.
   x_features: half [rows][features]; x: scratch for half [rows][stored]. Without x_features x is there, each feature at
   the place that exl_gemm_permutation says, and zeros where there is none.
   partial: EXL_GEMM_BLOCK_BYTES of scratch for each of `blocks`, which is the number of multiprocessors: they wait for
   each other. arrived: uint32 [blocks][EXL_GEMM_WARPS], zero at first and after every call.
   room: bytes of shared memory that a block may take; 0: all there is. x and partial begin at whole 16 bytes. */
typedef struct {
    ExlMatrix matrix[EXL_MAX_MATRICES];
    void *x, *y, *partial, *arrived;
    const void *x_features;
    int32_t matrices, rows, y_stride, blocks, room;
} ExlGemm;

#define EXL_PIECE_ROWS 128
#define EXL_GEMM_MAX_ROWS 4096
#define EXL_GEMM_BLOCK_BYTES 65536
#define EXL_GEMM_WARPS 8

int exl_gemm(const ExlGemm *job, void *stream);

/* permutation uint16 [features]: where in a row of x a product of that many rows reads each feature. The same for all that
   have up to EXL_GEMM_PAIRED_ROWS, and for all that have more, with all room. */
int exl_gemm_permutation(const ExlGemm *job, void *permutation, void *stream);
#define EXL_GEMM_PAIRED_ROWS 16

/* half [features][columns], rows in the order of the features; the weights themselves, rounded as the format says. */
int exl_dequantize(const ExlMatrix *matrix, void *weights, void *stream);

/* How an element of a cached vector is stored, as exlchat/ext/kv_formats.py defines it: a half; an 8-bit float (e4m3),
   or a code of 8 or 4 bits with a scale for each 32, of a vector that was turned by a Walsh-Hadamard transform. */
enum { EXL_CACHE_HALF = 0, EXL_CACHE_FLOAT8 = 1, EXL_CACHE_CODES8 = 2, EXL_CACHE_CODES4 = 3 };

/* One new token attends to the cached ones and to itself; its key and value are stored. Or several, each of which
   attends to what its own sequence has before it, tokens of the same call included, and comes to the same to the last bit
   as it would alone.
   qkv: half [rows][heads + 2 * kv_heads][head_dim], not rotated yet; out: half [rows][out_stride], element i of all heads
   at scatter[i]. position: int32 [rows], how many tokens are before each; those of one sequence grow by one from row to
   row. page_table: int32, that of a row begins table_stride (0: all are of one sequence, else of one each) behind that of
   the row before. turns: float [positions][rotary_dim / 2][2], cos and sin, for the first rotary_dim elements of a head:
   element i with i + rotary_dim / 2, or where `interleaved` elements 2 i and 2 i + 1.
   query_norm, key_norm: half [head_dim] or null.
   keys, values, and where they are codes the scales, of one layer: token t of head h is row
   page_table[t / 256] * page_stride + h * head_stride + t % 256; a row is head_dim elements of key_format or
   value_format, its scales half [head_dim / 32]. Formats are the same for both, or codes of 8 and of 4 bits; strides
   are multiples of 256, and rows are counted in an int32.
   window: how many tokens are seen, the new one included; 0: all. softcap: c tanh(score / c); 0: none.
   sinks: float [heads] or null: a score of each head that weighs in the softmax and has no value.
   head_dim: 64, 96, 128, 256, and 80 of halves. Work is split over at most `splits` (1 to 64) blocks a head.
   least: tokens that a block takes at least; what a row comes to depends on it, splits and its own length alone.
   partial: float [rows][kv_heads * tiles][splits][8][head_dim + 2] and tickets: int32 [rows][kv_heads * tiles], zero at
   first, where tiles is heads / kv_heads / 8 rounded up. rows: at most EXL_WIDE_ROWS.
   page_table and the cached rows may only change between steps. */
typedef struct {
    const void *qkv, *position, *turns, *page_table, *query_norm, *key_norm, *scatter, *sinks;
    void *keys, *values, *key_scales, *value_scales, *out, *partial, *tickets;
    float scale, softcap, eps;
    int32_t heads, kv_heads, head_dim, rotary_dim, key_format, value_format, window, splits, page_stride, head_stride;
    int32_t interleaved, rows, out_stride, table_stride, least;
} ExlAttention;

int exl_attention(const ExlAttention *job, int dependent, void *stream);

/* New tokens of one sequence, as many as a chunk of its prompt has, attend to the cached ones and to each other; their keys
   and values are stored. All in halves, sm_80 and later. What is named as in ExlAttention means the same.
   qkv: half [rows][heads + 2 * kv_heads][head_dim], queries and keys normed and turned. place: int32 [2], how many tokens are
   before the new ones, and how many of the rows there are, at least 1; the other rows of out, half [rows][heads * head_dim],
   stay. page_table: int32 of the sequence. partial: float [splits][tiles * kv_heads][128][head_dim + 2], where tiles is
   rows * heads / kv_heads / 128 rounded up. splits: at most 32. place, page_table and the rows that are cached already may
   only be written before the kernel before this one has begun. */
typedef struct {
    const void *qkv, *place, *page_table, *sinks;
    void *keys, *values, *out, *partial;
    float scale, softcap;
    int32_t heads, kv_heads, head_dim, window, splits, page_stride, head_stride, rows;
} ExlPromptAttention;

int exl_prompt_attention(const ExlPromptAttention *job, int dependent, void *stream);

/* Tokens first to first + tokens - 1 of all heads of a layer, between the cache and plain vectors. What is named as in
   ExlAttention means the same. plain_keys, plain_values: half; the vector of token first + t and head h begins at
   element h * keys_head + t * keys_token, or with values_head and values_token: multiples of 8, as the pointers are of
   16 bytes. */
typedef struct {
    const void *page_table;
    void *keys, *values, *key_scales, *value_scales, *plain_keys, *plain_values;
    int64_t keys_head, keys_token, values_head, values_token;
    int32_t kv_heads, head_dim, key_format, value_format, page_stride, head_stride, first, tokens;
} ExlPages;

/* The cache decoded into the plain vectors. */
int exl_read_pages(const ExlPages *job, void *stream);

/* The plain vectors into the cache; the bytes are those that exl_attention stores. */
int exl_write_pages(const ExlPages *job, void *stream);

/* residual = for each of `rows` tokens (int64) its row of a half table [vocab][width] times multiplier; width a multiple of
   16. Where the residual has no squares it has no copies either: `hidden` alone is written. */
typedef struct {
    const void *table, *token;
    ExlResidual residual;
    float multiplier;
    int32_t width, rows;
} ExlEmbed;

int exl_embed(const ExlEmbed *job, int dependent, void *stream);

/* y float [rows][y_stride] = x times weights that are halves, [outputs][width]; a row is the same to the last bit however
   many there are.
   x, squares, x_kind: as of an ExlGemv; nobody adds behind it, so the scale is not left. width: a multiple of 32. x and
   weight begin at whole 16 bytes. */
typedef struct {
    const void *x;
    const float *squares;
    const void *weight;
    float *y;
    float eps;
    int32_t x_kind, width, outputs, rows, y_stride;
} ExlHead;

int exl_head(const ExlHead *job, int dependent, void *stream);

/* A normed row as a product reads it: half, feature i at scatter[i]. */
typedef struct {
    void *x;                 /* null where there is no such product */
    const uint16_t *scatter; /* [width]; null: in the order of the features */
    int64_t stored;          /* from a row of x to the next */
} ExlSettleCopy;

#define EXL_SETTLE_WIDTH 16384
#define EXL_SETTLE_SLOTS 17
enum { EXL_NORM_NONE = 0, EXL_NORM_RMS = 1, EXL_NORM_LAYER = 2 };

/* Rows between two products, each by itself. sum = sum of weights[j] * y[j] + sigmoid(*gate) * added;
   hidden += multiplier * sum, or * its RMS norm where there is post_norm; every copy = the norm of hidden.
   y: half or, where y_floats, float [rows][slots][width]; null: none. weights: float [rows][slots]; null: all 1.
   added: half or float [rows][width]; null: none. gate: float, that of a row gate_stride behind that of the row before;
   null: 1 in place of its sigmoid.
   post_norm, norm, norm_bias: half [width] or null. EXL_NORM_NONE copies hidden itself.
   rows: 1 to EXL_MAX_ROWS. width: a multiple of 16, at most EXL_SETTLE_WIDTH. Floats begin at whole 16 bytes, halves and
   scatters at 8, in every row. */
typedef struct {
    float *hidden; /* [rows][width] */
    const void *y, *added;
    const float *weights, *gate;
    const void *post_norm, *norm, *norm_bias;
    ExlSettleCopy copies[EXL_MAX_MATRICES];
    float multiplier, post_eps, eps;
    int32_t width, rows, slots, gate_stride, y_floats, added_floats, norm_kind;
} ExlSettle;

int exl_settle(const ExlSettle *job, int dependent, void *stream);

/* Queries and keys normed in place, before exl_attention, in half [rows][heads + 2 * kv_heads][head_dim].
   EXL_NORM_LAYER: each head by itself; EXL_NORM_RMS: all queries of a row together and all its keys, at most 16384 elements.
   query_norm: half [heads][head_dim], key_norm: half [kv_heads][head_dim]; one of them may be null.
   rows: 1 to EXL_MAX_ROWS. head_dim: a multiple of 8, at most 256. Pointers are of 16 bytes. */
typedef struct {
    void *qkv;
    const void *query_norm, *key_norm;
    float eps;
    int32_t rows, heads, kv_heads, head_dim, kind;
} ExlNormHeads;

int exl_norm_heads(const ExlNormHeads *job, int dependent, void *stream);

/* logits float [count], in place: scale * logit, then softcap * tanh(that / softcap) where softcap is not 0. They are those
   of up to EXL_MAX_ROWS rows of up to EXL_MAX_VOCAB. The pointer is of 16 bytes. */
typedef struct {
    void *logits;
    float scale, softcap;
    int32_t count;
} ExlScaleLogits;

int exl_scale_logits(const ExlScaleLogits *job, int dependent, void *stream);

/* Between the products of a prompt.
   hidden float [rows][width] += added half [rows][width], unless that is null; y half [rows][width] = hidden over its
   root mean square times weight half [width], each number at its place in the row: permutation uint16 [width], or null.
   width: a multiple of 4; with a permutation of 8, and a row of y has to fit in shared memory. */
typedef struct {
    void *hidden;
    const void *added, *weight, *permutation;
    void *y;
    int32_t rows, width;
    float eps;
} ExlAddNorm;

int exl_add_norm(const ExlAddNorm *job, void *stream);

/* y half [rows][inner] = activation(first half of the columns) * second half of x half [rows][2 * inner]; inner: of 8. */
int exl_gate(const void *x, void *y, int rows, int inner, int activation, void *stream);

/* The first `rotary_dim` elements of the first `heads` of every row of x half [rows][all_heads][head_dim] are turned in
   place by turns float [rows][rotary_dim / 2][2], cos and sin: element i with i + rotary_dim / 2, or where `interleaved`
   elements 2 i and 2 i + 1. head_dim and rotary_dim: multiples of 4. */
int exl_turn(void *x, const void *turns, int rows, int heads, int all_heads, int head_dim, int rotary_dim,
             int interleaved, void *stream);

/* How the next token is drawn. Device memory: the host writes it between steps, and a step counts index and sequence on.
   A token outside the first top_k, outside the smallest set of first ones that holds top_p of their weight, or more
   than deepest octaves below the best is not drawn. */
typedef struct {
    double top_p;            /* 1: all */
    uint64_t seed, index;    /* key and counter of the draw: index of the token in the answer */
    double mu;               /* Mirostat's, which moves from step to step */
    float octaves_per_logit; /* log2(e) / temperature, between 1e-30 and 1e30 */
    float deepest;           /* -log2(min_p); infinity: all */
    int32_t top_k;           /* 0: all */
    int32_t greedy;          /* 1: the best token, whatever the rest says */
    uint32_t sequence;       /* of the last step that was reported */
    uint32_t attempt;        /* third word of the counter */
    uint32_t unused[2];
} ExlDraw;

#define EXL_MAX_VOCAB 327680
#define EXL_SAMPLE_SCRATCH_BYTES 51728
enum { EXL_DRAWN = 0, EXL_NOT_NUMBERS = 1, EXL_NOTHING_ALLOWED = 2 };

/* The end of a step: from float logits [vocab] a token, which goes to `token` (int64, for the next step's embed) and
   to the host; *position (int32), draw->index and draw->sequence grow by one. Where a logit is NaN or +inf, or all are
   -inf, the token is 0 and the status EXL_NOT_NUMBERS; EXL_NOTHING_ALLOWED where exl_adjust made them so.
   ring: uint64 [ring_slots] of mapped host memory, a power of two; slot `sequence % ring_slots` becomes
   sequence << 32 | status << 24 | token in one store.
   context: int32 [room] or null; where it is not null the token is written behind *position.
   numbers: uint32 or null: what exl_adjust says of the logits that it was given.
   scratch: EXL_SAMPLE_SCRATCH_BYTES, zero at first. */
typedef struct {
    const void *logits;
    ExlDraw *draw;
    void *token, *position, *ring, *context;
    const void *numbers;
    void *scratch;
    int32_t vocab, ring_slots, room;
} ExlSample;

int exl_sample(const ExlSample *job, int dependent, void *stream);

#define EXL_DRY_MOST 50
#define EXL_CHAIN_STEPS 13
enum {
    EXL_SMOOTHING, EXL_TEMPERATURE, EXL_TOP_N_SIGMA, EXL_TOP_K, EXL_TOP_P, EXL_TOP_A, EXL_MIN_P, EXL_TFS, EXL_TYPICAL,
    EXL_EPSILON, EXL_ETA, EXL_MIROSTAT, EXL_XTC
};

/* What an answer asks for beyond ExlDraw. Device memory, which the host writes between steps. The formulas stand in
   tests/ext/reference_adjust.py and reference_chain.py. */
typedef struct {
    double repetition, frequency, presence;
    double dry[EXL_DRY_MOST]; /* taken off the logit that lengthens a repetition of n + 1 tokens; 0: none */
    double smoothing_factor, smoothing_curve, temperature, dynatemp_low, dynatemp_high, dynatemp_exponent;
    double top_n_sigma, top_p, top_a, min_p, tfs, typical, epsilon, eta, mirostat_tau, mirostat_eta;
    double xtc_probability, xtc_threshold;
    int32_t penalties;                     /* 1: any of the first three is on */
    int32_t penalty_range, penalty_decay;  /* 0: the whole context; 0: none */
    int32_t dry_on, dry_range;             /* 0: the whole context */
    int32_t ngram;                         /* 0: off; else 2 or more */
    int32_t biased, barred;                /* 1: `bias` or `barred_until` holds anything */
    int32_t top_k, step_count;
    int32_t steps[EXL_CHAIN_STEPS];        /* each at most once */
    int32_t unused;
} ExlChain;

#define EXL_ADJUST_IDS 256 /* of one block of exl_adjust */

/* Logits as they are after everything that looks back, biases and bars; the logits themselves stay.
   adjusted float [vocab] from logits float [vocab]. context int32 [room], of which *position + 1 tokens are there.
   bias float [vocab]. barred_until uint32 [vocab]: the token is not drawn while draw->index is below.
   mask uint32 [(vocab + 31) / 32 + 1]: where the last word is not 0, only tokens whose bit is set are drawn.
   breakers uint32 [(vocab + 31) / 32]: tokens over which no repetition goes on.
   counted uint64 [vocab], newest and repeated uint32 [vocab]: zero at first, and after every step.
   numbers uint32: becomes the number of this step (draw->sequence + 1) where a logit is a finite number.
   ends uint64 [(vocab + EXL_ADJUST_IDS - 1) / EXL_ADJUST_IDS][2]: of each piece of `adjusted`, for exl_chain.
   blocks: of the kernel that looks back. */
typedef struct {
    const void *logits;
    void *adjusted;
    const ExlDraw *draw;
    const ExlChain *chain;
    const void *position, *context, *bias, *barred_until, *mask, *breakers;
    void *counted, *newest, *repeated, *numbers, *ends;
    int32_t vocab, room, blocks;
} ExlAdjust;

int exl_adjust(const ExlAdjust *job, int dependent, void *stream);

#define EXL_CHAIN_BLOCKS 256
#define EXL_CHAIN_SCRATCH_BYTES 311312 /* and 24 for each token of the vocabulary */

/* The end of a step by the steps of `chain` in their order; sample.logits are adjusted ones. draw->mu moves.
   sheltered uint32 [(vocab + 31) / 32]: tokens that XTC leaves alone. ends: as exl_adjust left it.
   scratch: EXL_CHAIN_SCRATCH_BYTES + 24 vocab, zero at first.
   blocks: at most EXL_CHAIN_BLOCKS and the multiprocessors of the card, since they wait for each other. */
typedef struct {
    ExlSample sample;
    const ExlChain *chain;
    const void *sheltered, *ends;
    void *scratch;
    int32_t blocks;
} ExlChainJob;

int exl_chain(const ExlChainJob *job, int dependent, void *stream);

/* The ends of a step of many rows, each as if it were alone: exl_adjust_rows, where a row is not plain, then exl_sample_rows
   for those without a chain and exl_chain_rows for those with one; nothing where the kind is EXL_ROW_NONE. draws: ExlRowDraw [count], kinds: int32 [count], both in
   device memory; count: at most EXL_WIDE_ROWS, of one vocabulary. `plain` draws from the logits, `chain.sample` from what
   `adjust` makes of them. A chain is taken by one block, whatever chain.blocks says: sums of doubles, and so near-ties,
   depend on it. chunks: not the caller's. */
enum { EXL_ROW_PLAIN = 0, EXL_ROW_ADJUSTED = 1, EXL_ROW_CHAIN = 2, EXL_ROW_NONE = 3 };
typedef struct {
    ExlSample plain;
    ExlAdjust adjust;
    ExlChainJob chain;
} ExlRowDraw;
typedef struct {
    const void *draws, *kinds;
    int32_t count, vocab, chunks;
} ExlDrawRows;

int exl_adjust_rows(const ExlDrawRows *rows, int dependent, void *stream);
int exl_sample_rows(const ExlDrawRows *rows, int dependent, void *stream);
int exl_chain_rows(const ExlDrawRows *rows, int dependent, void *stream);

#define EXL_MAX_EXPERTS 512
#define EXL_MAX_CHOSEN 16   /* experts of one token */
#define EXL_MAX_SLOTS 65536 /* of all tokens of a product */

/* Which experts each token goes to.
   logits float [tokens][rows] = router x + bias: x half [tokens][width], or where `squares` is not null float, as a residual
   leaves it in the order of the features, with squares float [tokens][width / 16] and eps; router half or (router_float)
   float [rows][width], bias float [rows] or null. The first `experts` rows are experts; what is behind them is a product
   and no more.
   Unless chosen is null, of the experts the `slots` with the largest logits, the lower number first among equals: chosen
   int32 [tokens][slots], the best first, and weights float [tokens][slots], the softmax of all experts' logits, or (renormalised) of the chosen
   ones'. Whatever the logits are, the chosen of a token are different numbers below `experts`.
   tickets: int32 [tokens], zero at first, which the steps of one stream may share. tokens: 1 to EXL_MAX_ROWS. width: a
   multiple of 8. x and router begin at whole 16 bytes. */
typedef struct {
    const void *x, *squares, *router, *bias;
    void *logits, *chosen, *weights, *tickets;
    float eps;
    int32_t tokens, width, rows, experts, slots, router_float, renormalised;
} ExlRoute;

int exl_route(const ExlRoute *job, int dependent, void *stream);

#define EXL_EXPERT_MATRICES 2

/* An expert among others of the same shapes and sections. */
typedef struct {
    const uint32_t *words[EXL_EXPERT_MATRICES], *scales[EXL_EXPERT_MATRICES];
    const void *bias[EXL_EXPERT_MATRICES]; /* half or null */
    const uint16_t *gather;                /* of its input: [stored], 65535 for rows without a feature */
    const uint16_t *scatter;               /* of its output: [columns]; null: the order of the columns */
} ExlExpert;

/* Beside those of ExlGemv, of experts alone: silu-like with a limit, as gpt-oss has it:
   gate = min(gate, limit), up = clamp(up, -limit, limit): gate * sigmoid(1.702 gate) * (up + 1). */
#define EXL_SWIGLU_OAI 8

/* How many of how many experts are chosen by logits, and from one token's logits to the next. */
typedef struct {
    int32_t experts, slots, renormalised, stride;
} ExlChoice;

/* y[slot] = x[slot] W of expert chosen[slot], one row each. What is named as in ExlGemv means the same; the plan is that
   of a slot, and only `matrices`, 1 or 2, are of one expert (any; their pointers are not read).
   table: ExlExpert [experts] in device memory. x: half [slots / x_slots][x_stride], a row for x_slots neighbours each; in
   the order of the features (`gathered`), [features], or in that of the expert's rows, [stored]. Gathered and where
   `squares` is not null it is float, as a residual leaves it, with squares float [rows of x][features / 16] and eps.
   Where `logits` is not null, float [slots / choice.slots][choice.stride], chosen is null, and each token's experts are
   those that exl_route would choose by them.
   x_rows: the most rows of x from the first to the last that a block reads.
   y: EXL_Y_GATED  half [slots][y_stride], at the expert's scatter[column]
      EXL_Y_FLOAT  float [slots][y_stride] */
typedef struct {
    const int32_t *plan;
    const ExlExpert *table;
    ExlMatrix matrix[EXL_EXPERT_MATRICES];
    const void *chosen, *logits, *x, *squares;
    void *y;
    float limit, eps;
    ExlChoice choice;
    int32_t experts, slots, matrices, gathered, x_slots, x_stride, y_kind, y_stride, activation;
    int32_t blocks, columns, plan_ints, segments, x_rows, room;
} ExlExpertProduct;

int exl_expert_product(const ExlExpertProduct *job, int dependent, void *stream);

/* The sum of a token's experts joins the residual: x[slot] W of each that is chosen by logits float [tokens][choice.stride],
   times its weight, added up over the slots of each of `tokens`, all as exl_route would choose them, or where chosen is not
   null as it has left them in chosen and weights; x half [tokens][slots][stored], in the order of the expert's rows. The
   residual is one card's, and does not defer.
   The plan is one of all slots of a token as if their rows were one matrix's, whose column of slot n and column tile c is
   n * tiles + c. matrix: of one expert, without a bias; its words and scales are the lowest of all experts', and none end
   more than 64 GB behind them.
   What is chosen must have been there before the previous kernel of the stream began: it is read before that ends. */
typedef struct {
    const int32_t *plan;
    const ExlExpert *table;
    ExlMatrix matrix;
    const void *logits, *chosen, *weights, *x;
    ExlResidual residual;
    ExlChoice choice;
    int32_t tokens, tiles;
    int32_t blocks, columns, plan_ints, segments, x_rows, room;
} ExlExpertSum;

int exl_expert_sum(const ExlExpertSum *job, int dependent, void *stream);

#define EXL_MAX_DENSE_INPUTS 24576

/* The same for weights that are not quantized: half [experts][outputs][inputs], expert e at element e * expert_stride.
   bias: half [experts][outputs] or null. x: half [slots / x_slots][x_stride]; inputs: a multiple of 8, outputs an even
   number; weights and x begin at whole 16 bytes, strides are multiples of 8. blocks: of a slot. */
typedef struct {
    const void *weights[EXL_EXPERT_MATRICES], *bias[EXL_EXPERT_MATRICES];
    const void *chosen, *x;
    void *y;
    int64_t expert_stride;
    float limit;
    int32_t slots, matrices, inputs, outputs, x_slots, x_stride, y_kind, y_stride, activation, blocks;
} ExlDenseProduct;

int exl_dense_product(const ExlDenseProduct *job, int dependent, void *stream);

#define EXL_MOST_ROUNDED_ROWS 128

/* The converter's: `size` rows of a group are rounded one behind the other, each column with several scales. What row i
   of a column is wrong by, over upper[i][i], times upper[i][j] is taken from every later row j.
   rows: float [size][batch][columns]. upper: float [size][size]. scale: float [batch][candidates][columns]. half: float
   [batch], codes lie between -half and half - 1. codes, errors: float [size][batch][candidates][columns] or null.
   losses: float [batch][candidates][columns], the sum of squared errors. halved: products are rounded to halves.
   size: 32 to EXL_MOST_ROUNDED_ROWS, a multiple of 32. */
typedef struct {
    const void *rows, *upper, *scale, *half;
    void *codes, *errors, *losses;
    int32_t size, batch, candidates, columns, halved;
} ExlHandOn;

int exl_hand_on(const ExlHandOn *job, int dependent, void *stream);

/* Codes float [size][columns] of a group become better ones, row by row: gradient float [size][columns] is that of half
   the loss before, curve float [size][size] its symmetric matrix, scale float [columns]. */
typedef struct {
    void *codes;
    const void *gradient, *curve, *scale;
    float half;
    int32_t size, columns;
} ExlImprove;

int exl_improve(const ExlImprove *job, int dependent, void *stream);

/* Exchange number `number` behind those that have been counted, the same kind of the same sizes on all cards.
   exl_exchange_sums: float values [rows][columns] become the sums over all cards, in their order; with `halves` two halves
                      are a word, and sums are rounded to halves.
   exl_exchange_parts: of words [rows][columns] card c has those columns before ends[c] that are not of the cards before
   it, and sends them to the cards whose bit in `receivers` is set. Column `first` of a row stands at values[row * stride]. */
typedef struct {
    const ExlPeers *peers;
    void *values;
    int32_t number, rows, columns, halves, stride, first, receivers;
    int32_t ends[EXL_MAX_CARDS];
} ExlExchange;

int exl_exchange_sums(const ExlExchange *job, int dependent, void *stream);
int exl_exchange_parts(const ExlExchange *job, int dependent, void *stream);

/* So many exchanges have been. */
typedef struct {
    const ExlPeers *peers;
    int32_t count;
} ExlCount;

int exl_count_exchanges(const ExlCount *job, int dependent, void *stream);

#define EXL_MAX_SENT 8

/* Copies of words to where another card has them: those of the next card, or of the first one; a whole multiple of 4 bytes. */
typedef struct {
    const void *source[EXL_MAX_SENT];
    void *target[EXL_MAX_SENT];
    int32_t words[EXL_MAX_SENT];
    int32_t count;
} ExlSend;

int exl_send(const ExlSend *job, int dependent, void *stream);

/* Lets kernels of a device write to memory of another; *reaches becomes 0 where they cannot. Loads the code of exchanges there. */
int exl_reach(int device, int peer, int32_t *reaches);

#ifdef __cplusplus
}
#endif
#endif
