// How the cache holds keys and values, and how they become operands of the tensor cores. kv_formats.py is the definition.
//
// A head's vector of one token is one row of halves, or of codes turned by a Walsh-Hadamard transform, with a half scale
// for each 32. 16 tokens are a piece, which comes to shared memory as it is stored. Both products read a piece in rows
// only: the keys' product may take the elements of a row in any order, as long as the query has the same, and the
// values' product takes two tokens to a register.
#pragma once
#include "device.cuh"

namespace exl {

constexpr int PAGE = 256;  // tokens
constexpr int UNIT = 16;   // tokens of a piece
constexpr int GROUP = 32;  // elements of a scale

__host__ __device__ constexpr int power_of_two_in(int n, int most) { return (n & -n) < most ? (n & -n) : most; }

// A row of DIM elements that READERS lanes share: each takes LOAD bytes, then the next LOAD after the other lanes' turn.
template <int BITS, int DIM, int READERS> struct Row {
    static constexpr int BYTES = DIM * BITS / 8;
    static constexpr int LOAD = power_of_two_in(BYTES / READERS, 16);
    static constexpr int LOADS = BYTES / READERS / LOAD;
    static constexpr int ELEMENTS = LOAD * 8 / BITS;  // of a load
    static constexpr int SCALES = BITS < 16 ? DIM / GROUP : 0;
};

// Where the parts of a piece lie, so that the lanes of a load fall on different banks: rows of keys that would begin on
// the same bank change places of their 64-byte halves, rows of values are 16 bytes apart from a multiple of 32.
template <int BITS, int DIM> struct KeyPiece : Row<BITS, DIM, 4> {
    using R = Row<BITS, DIM, 4>;
    static constexpr int STRIDE = R::BYTES, SCALES_AT = UNIT * STRIDE, SIZE = SCALES_AT + UNIT * R::SCALES * 2;
    static __device__ __forceinline__ int at(int row, int byte) {
        return row * STRIDE + (R::BYTES % 128 == 0 ? byte ^ (row & 1) * 64 : byte);
    }
};
template <int BITS, int DIM> struct ValuePiece : Row<BITS, DIM, 8> {
    using R = Row<BITS, DIM, 8>;
    static constexpr int STRIDE = R::BYTES / 16 % 2 ? R::BYTES : R::BYTES + 16;
    static constexpr int SCALES_AT = UNIT * STRIDE, SIZE = SCALES_AT + UNIT * R::SCALES * 2;
    static __device__ __forceinline__ int at(int row, int byte) { return row * STRIDE + byte; }
};

// 16 bytes to shared memory, of which the first `bytes` are read and the others become zero.
__device__ __forceinline__ void copy16_of(void *to, const void *from, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes) : "memory");
#else
    uint4 v = __ldcg(static_cast<const uint4 *>(from));
    uint16_t *halves = reinterpret_cast<uint16_t *>(&v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i * 2 >= bytes) halves[i] = 0;
    *static_cast<uint4 *>(to) = v;
#endif
}

// A warp copies the first `valid` tokens of a piece and zeros for the others: what was never written may be NaN.
template <class Piece> __device__ __forceinline__ void fetch(uint8_t *piece, const void *rows, const void *scales,
                                                            int64_t first, int valid, int lane) {
    constexpr int PARTS = Piece::BYTES / 16;
    const uint8_t *from = static_cast<const uint8_t *>(rows) + first * Piece::BYTES;
#pragma unroll
    for (int i = lane; i < UNIT * PARTS; i += LANES) {
        const int row = i / PARTS;
        copy16_of(piece + Piece::at(row, i % PARTS * 16), from + i * 16, row < valid ? 16 : 0);
    }
    if constexpr (Piece::SCALES > 0) {
        const uint8_t *scale = static_cast<const uint8_t *>(scales) + first * Piece::SCALES * 2;
        for (int i = lane * 16; i < UNIT * Piece::SCALES * 2; i += LANES * 16)
            copy16_of(piece + Piece::SCALES_AT + i, scale + i, min(max(valid * Piece::SCALES * 2 - i, 0), 16));
    }
}

template <int BYTES> __device__ __forceinline__ void load(uint32_t (&words)[(BYTES + 3) / 4], const uint8_t *from) {
    if constexpr (BYTES == 16) {
        const uint4 v = *reinterpret_cast<const uint4 *>(from);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (BYTES == 8) {
        const uint2 v = *reinterpret_cast<const uint2 *>(from);
        words[0] = v.x, words[1] = v.y;
    } else if constexpr (BYTES == 4) {
        words[0] = *reinterpret_cast<const uint32_t *>(from);
    } else {
        words[0] = *reinterpret_cast<const uint16_t *>(from);
    }
}

// Two codes of a word as halves around zero. 0x6400 is 1024 with a unit in the last place of 1, so a code put into its
// low bits is 1024 + code, and into its next four 1024 + 16 code. 8 bits: codes 2i and 2i + 1; 4 bits: i and i + 4.
template <int BITS> __device__ __forceinline__ half2 pair(uint32_t word, int i) {
    if constexpr (BITS == 16) {
        return reinterpret_cast<const half2 &>(word);
    } else if constexpr (BITS == 8) {
        const uint32_t v = __byte_perm(word, 0x64646464, i ? 0x4342 : 0x4140);
        return __hsub2(reinterpret_cast<const half2 &>(v), __float2half2_rn(1024 + 128));
    } else {
        const uint32_t nibbles = i < 2 ? word : word >> 8;
        const uint32_t v = (nibbles & (i % 2 ? 0x00f000f0 : 0x000f000f)) | 0x64006400;
        const half2 h = reinterpret_cast<const half2 &>(v);
        if (i % 2) return __hfma2(h, __float2half2_rn(1.f / 16), __float2half2_rn(-64 - 8));
        return __hsub2(h, __float2half2_rn(1024 + 8));
    }
}
__device__ __forceinline__ uint32_t bits_of(half2 h) { return reinterpret_cast<const uint32_t &>(h); }

// Where element d of the query stands, so that lane c of four finds its share, in the order of the pairs, in one run.
template <int BITS, int DIM> __device__ __forceinline__ int query_place(int d) {
    using R = Row<BITS, DIM, 4>;
    const int load = d / R::ELEMENTS;
    int e = d % R::ELEMENTS;
    if (BITS == 4) e = (e & ~7) + e % 4 * 2 + e % 8 / 4;
    return load % 4 * (DIM / 4) + load / 4 * R::ELEMENTS + e;
}

// Scores of 8 heads with 2 x 8 tokens: score[t][e] is head lane / 4 and token 8 t + lane % 4 * 2 + e, for e < 2.
template <int BITS, int DIM>
__device__ __forceinline__ void multiply_keys(const uint8_t *piece, const uint32_t (&query)[DIM / 8],
                                              float (&score)[2][4], int lane) {
    using P = KeyPiece<BITS, DIM>;
    const half *scales = reinterpret_cast<const half *>(piece + P::SCALES_AT);
#pragma unroll
    for (int i = 0; i < P::LOADS; i++)
#pragma unroll
        for (int t = 0; t < 2; t++) {
            constexpr int PAIRS = BITS == 16 ? 1 : 16 / BITS;
            const int row = t * 8 + lane / 4, part = i * 4 + lane % 4;
            uint32_t words[P::LOAD / 4];
            load<P::LOAD>(words, piece + P::at(row, part * P::LOAD));
            half2 scale;
            if constexpr (BITS < 16) scale = __half2half2(scales[row * P::SCALES + part * P::ELEMENTS / GROUP]);
#pragma unroll
            for (int k = 0; k < P::ELEMENTS / 4; k++) {
                half2 low = pair<BITS>(words[2 * k / PAIRS], 2 * k % PAIRS);
                half2 high = pair<BITS>(words[(2 * k + 1) / PAIRS], (2 * k + 1) % PAIRS);
                if constexpr (BITS < 16) low = __hmul2(low, scale), high = __hmul2(high, scale);
                const uint32_t *q = query + (i * (P::ELEMENTS / 4) + k) * 2;
                mma(score[t], q[0], 0, q[1], 0, bits_of(low), bits_of(high));
            }
        }
}

// Which element of a head row r (0 or 1) of tile m of the mixture is for this lane.
template <int BITS, int DIM> __device__ __forceinline__ int mixed_place(int m, int r, int lane) {
    constexpr int E = Row<BITS, DIM, 8>::ELEMENTS;
    return (m / (E / 2) * 8 + lane / 4) * E + m % (E / 2) * 2 + r;
}

// Adds 16 tokens' values to the mixture of 8 heads: mixed[m][2 r + e] is element mixed_place(m, r) of head
// lane % 4 * 2 + e. weights: of head lane / 4, tokens lane % 4 * 2 and the next, then the same 8 tokens on.
template <int BITS, int DIM>
__device__ __forceinline__ void add_values(const uint8_t *piece, const uint32_t (&weights)[2],
                                           float (&mixed)[DIM / 16][4], int lane) {
    using P = ValuePiece<BITS, DIM>;
    const half *scales = reinterpret_cast<const half *>(piece + P::SCALES_AT);
    const int token = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        constexpr int WORDS = (P::LOAD + 3) / 4, COUPLES = P::LOAD == 2 ? 1 : 2, EACH = 16 / BITS;
        const int part = i * 8 + lane / 4;
        uint32_t row[4][WORDS];
        half2 scale[2];
#pragma unroll
        for (int r = 0; r < 4; r++) load<P::LOAD>(row[r], piece + P::at(token + r % 2 + r / 2 * 8, part * P::LOAD));
        if constexpr (BITS < 16) {
            const half *s = scales + token * P::SCALES + part * P::ELEMENTS / GROUP;
            scale[0] = __halves2half2(s[0], s[P::SCALES]);
            scale[1] = __halves2half2(s[8 * P::SCALES], s[9 * P::SCALES]);
        }
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            uint32_t a[COUPLES * EACH][2];  // of each element: 2 tokens, and 2 tokens 8 on
#pragma unroll
            for (int n = 0; n < COUPLES; n++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    constexpr int LOW = BITS == 8 ? 0x5140 : 0x5410, HIGH = BITS == 8 ? 0x7362 : 0x7632;
                    const uint32_t both = __byte_perm(row[2 * h][w], row[2 * h + 1][w], n ? HIGH : LOW);
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        half2 v = pair<BITS>(both, e);
                        if constexpr (BITS < 16) v = __hmul2(v, scale[h]);
                        a[n * EACH + e][h] = bits_of(v);
                    }
                }
#pragma unroll
            for (int m = 0; m < COUPLES * EACH / 2; m++)
                mma(mixed[i * (P::ELEMENTS / 2) + w * (COUPLES * EACH / 2) + m], a[2 * m][0], a[2 * m + 1][0],
                    a[2 * m][1], a[2 * m + 1][1], weights[0], weights[1]);
        }
    }
}

// A head's vector in a warp's registers: x[i] is element lane + 32 i.
template <int DIM> constexpr int SHARE = (DIM + LANES - 1) / LANES;

// The normalised Walsh-Hadamard transform over the largest power of two that divides a head; its own inverse.
template <int DIM> __device__ __forceinline__ void hadamard(float (&x)[SHARE<DIM>], int lane) {
    constexpr int SIZE = power_of_two_in(DIM, 256);
    static_assert(DIM % LANES == 0, "");
#pragma unroll
    for (int step = 1; step < LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], step);
            x[i] = lane & step ? other - x[i] : other + x[i];
        }
#pragma unroll
    for (int step = 1; step < SIZE / LANES; step *= 2)
#pragma unroll
        for (int i = 0; i < SHARE<DIM>; i++)
            if ((i & step) == 0) {
                const float low = x[i], high = x[i + step];
                x[i] = low + high, x[i + step] = low - high;
            }
    const float norm = rsqrtf(SIZE);
#pragma unroll
    for (int i = 0; i < SHARE<DIM>; i++) x[i] *= norm;
}

// A warp stores a vector, turned already where codes are kept, as token `row` of the cache.
template <int BITS, int DIM>
__device__ __forceinline__ void store(void *rows, void *scales, int64_t row, const float *x, int lane) {
    for (int i = 0; i < SHARE<DIM>; i++) {
        const int d = i * LANES + lane;
        if constexpr (BITS == 16) {
            if (d < DIM) static_cast<half *>(rows)[row * DIM + d] = __float2half_rn(x[d]);
        } else {
            constexpr int MIDDLE = 1 << (BITS - 1);
            const float value = fminf(fmaxf(x[d], -65504.f), 65504.f);
            float extreme = value;
            for (int step = 1; step < LANES; step *= 2) {
                const float other = __shfl_xor_sync(~0u, extreme, step);
                const float a = fabsf(other), b = fabsf(extreme);
                if (a > b || (a == b && other > extreme)) extreme = other;
            }
            const half scale = __float2half_rn(extreme / -MIDDLE);
            const float s = __half2float(scale), inverse = s == 0.f ? 0.f : 1.f / s;
            const int code = min(max(__float2int_rn(value * inverse) + MIDDLE, 0), 2 * MIDDLE - 1);
            if (lane == 0) static_cast<half *>(scales)[row * (DIM / GROUP) + i] = scale;
            uint8_t *codes = static_cast<uint8_t *>(rows) + row * (DIM * BITS / 8);
            if constexpr (BITS == 8) {
                codes[d] = code;
            } else {
                const int next = __shfl_down_sync(~0u, code, 1);
                if (lane % 2 == 0) codes[d / 2] = code | next << 4;
            }
        }
    }
}

}  // namespace exl
