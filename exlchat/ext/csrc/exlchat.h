/* The C face of the CUDA kernels. Everything is device memory unless it says otherwise; nothing here allocates or
   synchronises. Every function returns 0, a cudaError_t, or a negative EXL_ code; exl_error_text explains either. */
#ifndef EXLCHAT_H
#define EXLCHAT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EXL_ABI_VERSION 1
#define EXL_MAX_SECTIONS 6
#define EXL_MAX_MATRICES 3

#define EXL_BAD_ARGUMENT -1

typedef struct {
    int32_t bits, tile, tiles, word, scale, rows_per_scale;
} ExlSection;

/* A quantized matrix as exlchat/ext/layout.py packs it. */
typedef struct {
    const uint32_t *words;      /* [column_tiles][words_per_column] */
    const uint8_t *scale_index; /* [column_tiles][8][scales] */
    const void *scale_max;      /* half [scales] */
    const uint16_t *gather;     /* [tiles * 64], 65535 for rows without a feature */
    const void *bias;           /* half [column_tiles * 16] or null */
    int32_t features, tiles, column_tiles, words_per_column, scales, section_count;
    ExlSection sections[EXL_MAX_SECTIONS];
} ExlMatrix;

enum { EXL_X_HALF = 0, EXL_X_NORM = 1 };
enum { EXL_Y_HALF = 0, EXL_Y_ADD = 1, EXL_Y_GATED = 2, EXL_Y_FLOAT = 3 };

/* y = x W for up to three matrices that read the same x, their columns one behind the other.
   x:  EXL_X_HALF   half [rows][features]
       EXL_X_NORM   float [1][features], divided by its root mean square and multiplied by norm (half [features])
   y:  EXL_Y_HALF   half [rows][columns]
       EXL_Y_FLOAT  float [rows][columns]
       EXL_Y_ADD    float [rows][columns], added to
       EXL_Y_GATED  half [rows][columns of one], silu(first) * second of exactly two matrices of equal size */
typedef struct {
    ExlMatrix matrix[EXL_MAX_MATRICES];
    const void *x, *norm;
    void *y;
    float eps;
    int32_t matrices, rows, x_kind, y_kind;
} ExlGemv;

int exl_abi_version(void);
const char *exl_error_text(int code);

/* The CUDA that this was made with, 13000 for 13.0. */
int exl_cuda_version(void);

/* 0 if the current card can run this library; cudaErrorInsufficientDriver or cudaErrorNoKernelImageForDevice if not. */
int exl_card_status(void);

/* rows: 1 to 8. dependent: launch with programmatic stream serialization (sm_90 and later). */
int exl_gemv(const ExlGemv *job, int dependent, void *stream);

/* half [features][columns], rows in the order of the features; the weights themselves, rounded as the format says. */
int exl_dequantize(const ExlMatrix *matrix, void *weights, void *stream);

/* One new token attends to all before it and to itself; its key and value are stored.
   qkv: half [heads + 2 * kv_heads][head_dim], not rotated yet; out: half [heads][head_dim].
   keys, values: half [kv_heads][capacity][head_dim] of one layer.
   turns: float [capacity][head_dim / 2][2], cos and sin of every position.
   position: int32, how many tokens are cached. Work is split over `splits` blocks a key-value head.
   partial: float [kv_heads][splits][heads / kv_heads][head_dim + 2]; tickets: int32 [kv_heads], zero at first.
   At most 16 heads for one key-value head. */
typedef struct {
    const void *qkv, *turns, *position;
    void *keys, *values, *out, *partial, *tickets;
    float scale;
    int32_t heads, kv_heads, head_dim, capacity, splits;
} ExlAttention;

int exl_attention(const ExlAttention *job, int dependent, void *stream);

/* hidden float [width] = row `*token` of a half table. */
int exl_embed(const void *table, const void *token, void *hidden, int width, int dependent, void *stream);

/* How the next token is drawn. Device memory: the host writes it between steps, and a step counts index and sequence on.
   A token outside the first top_k, outside the smallest set of first ones that holds top_p of their weight, or more
   than deepest octaves below the best is not drawn. */
typedef struct {
    double top_p;            /* 1: all */
    uint64_t seed, index;    /* key and counter of the draw: index of the token in the answer */
    float octaves_per_logit; /* log2(e) / temperature, between 1e-30 and 1e30 */
    float deepest;           /* -log2(min_p); infinity: all */
    int32_t top_k;           /* 0: all */
    int32_t greedy;          /* 1: the best token, whatever the rest says */
    uint32_t sequence;       /* of the last step that was reported */
    uint32_t unused;
} ExlDraw;

#define EXL_MAX_VOCAB 262144
#define EXL_SAMPLE_SCRATCH_BYTES 47120
enum { EXL_DRAWN = 0, EXL_NOT_NUMBERS = 1 };

/* The end of a step: from float logits [vocab] a token, which goes to `token` (int64, for the next step's embed) and
   to the host; *position (int32), draw->index and draw->sequence grow by one. Where a logit is NaN or +inf, or all are
   -inf, the token is 0 and the status EXL_NOT_NUMBERS.
   ring: uint64 [ring_slots] of mapped host memory, a power of two; slot `sequence % ring_slots` becomes
   sequence << 32 | status << 24 | token in one store.
   scratch: EXL_SAMPLE_SCRATCH_BYTES, zero at first. */
typedef struct {
    const void *logits;
    ExlDraw *draw;
    void *token, *position, *ring, *scratch;
    int32_t vocab, ring_slots;
} ExlSample;

int exl_sample(const ExlSample *job, int dependent, void *stream);

#ifdef __cplusplus
}
#endif
#endif
