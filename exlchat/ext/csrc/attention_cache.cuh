// How stored keys and values become operands of the tensor cores.
//
// A head's vector of one token is one row of elements as kv_format.cuh has them, with a half scale for each 32 codes.
// 16 tokens are a piece, which comes to shared memory as it is stored. Both products read a piece in rows only: the
// keys' product may take the elements of a row in any order, as long as the query has the same, and the values' product
// takes two tokens to a register.
#pragma once
#include "kv_format.cuh"

namespace exl {

constexpr int UNIT = 16;  // tokens of a piece

// A row of DIM elements that READERS lanes share: each takes LOAD bytes, then LOAD more after the other lanes' turn. A
// piece is UNIT rows and then their scales.
template <int FORMAT, int DIM, int READERS> struct Rows {
    static constexpr int BITS = width_of(FORMAT), BYTES = DIM * BITS / 8;
    static constexpr int LOAD = power_of_two_in(BYTES / READERS, 16);
    static constexpr int LOADS = BYTES / READERS / LOAD;
    static constexpr int ELEMENTS = LOAD * 8 / BITS;  // of a load
    static constexpr int SCALES = scaled(FORMAT) ? DIM / GROUP : 0;
};

// Where a byte of a piece lies, so that the lanes of one load fall on different banks. Keys: 4 lanes read one row, 8 or
// fewer rows at once, so rows that begin on the same bank change places of their halves of 64 bytes.
template <int FORMAT, int DIM> struct KeyPiece : Rows<FORMAT, DIM, 4> {
    using R = Rows<FORMAT, DIM, 4>;
    static constexpr int SCALES_AT = UNIT * R::BYTES, SIZE = SCALES_AT + UNIT * R::SCALES * 2;
    static __device__ __forceinline__ int at(int row, int byte) {
        return row * R::BYTES + (R::BYTES % 128 == 0 ? byte ^ (row & 1) * 64 : byte);
    }
};
// Values: 8 lanes read 32 bytes or fewer of a row, and four rows are read at once, two apart.
template <int FORMAT, int DIM> struct ValuePiece : Rows<FORMAT, DIM, 8> {
    using R = Rows<FORMAT, DIM, 8>;
    static constexpr int STRIDE = R::BYTES % 64 == 0 || R::BYTES / 16 % 2 ? R::BYTES : R::BYTES + 16;
    static constexpr int SCALES_AT = UNIT * STRIDE, SIZE = SCALES_AT + UNIT * R::SCALES * 2;
    static __device__ __forceinline__ int at(int row, int byte) {
        if (R::BYTES % 128 == 0) return row * STRIDE + (byte ^ (row / 2 & 3) * 32);
        if (R::BYTES % 64 == 0) return ((row & ~3) + row / 2 % 2 + row % 2 * 2) * STRIDE + (byte ^ (row / 4 & 1) * 32);
        return row * STRIDE + byte;
    }
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
                                                            int first, int valid, int lane) {
    constexpr int PARTS = Piece::BYTES / 16, STEP = LANES % PARTS ? 0 : LANES / PARTS;
    const uint8_t *from = static_cast<const uint8_t *>(rows) + (size_t)first * Piece::BYTES + lane * 16;
    asm("" : "+l"(from));  // one address and constant offsets: the compiler makes an address of each copy otherwise
#pragma unroll
    for (int i = 0; i * LANES < UNIT * PARTS; i++) {
        const int row = STEP ? lane / PARTS + i * STEP : (i * LANES + lane) / PARTS;
        const int part = STEP ? lane % PARTS : (i * LANES + lane) % PARTS;
        if ((i + 1) * LANES <= UNIT * PARTS || row < UNIT)
            copy16_of(piece + Piece::at(row, part * 16), from + i * LANES * 16, row < valid ? 16 : 0);
    }
    if constexpr (Piece::SCALES > 0) {
        const int i = lane * 16;
        static_assert(UNIT * Piece::SCALES * 2 <= LANES * 16, "one copy a lane");
        if (i < UNIT * Piece::SCALES * 2)
            copy16_of(piece + Piece::SCALES_AT + i,
                      static_cast<const uint8_t *>(scales) + (size_t)first * (Piece::SCALES * 2) + i,
                      min(max(valid * Piece::SCALES * 2 - i, 0), 16));
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

__device__ __forceinline__ uint32_t bits_of(half2 h) { return reinterpret_cast<const uint32_t &>(h); }

// Where element d of the query stands, so that lane c of four finds its share, in the order of the pairs, in one run.
template <int FORMAT, int DIM> __device__ __forceinline__ int query_place(int d) {
    using R = Rows<FORMAT, DIM, 4>;
    const int load = d / R::ELEMENTS;
    int e = d % R::ELEMENTS;
    if (R::BITS == 4) e = (e & ~7) + e % 4 * 2 + e % 8 / 4;
    return load % 4 * (DIM / 4) + load / 4 * R::ELEMENTS + e;
}

// Scores of 16 tokens with 8 heads: score[2 r + e] is token 8 r + lane / 4, head lane % 4 * 2 + e.
template <int FORMAT, int DIM>
__device__ __forceinline__ void multiply_keys(const uint8_t *piece, const uint32_t (&query)[DIM / 8], float (&score)[4],
                                              int lane) {
    using P = KeyPiece<FORMAT, DIM>;
    constexpr int PAIRS = P::BITS == 16 ? 1 : 16 / P::BITS;
    const half *scales = reinterpret_cast<const half *>(piece + P::SCALES_AT);
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        const int part = i * 4 + lane % 4;
        uint32_t words[2][P::LOAD / 4];
        half2 scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = r * 8 + lane / 4;
            load<P::LOAD>(words[r], piece + P::at(row, part * P::LOAD));
            if constexpr (scaled(FORMAT)) scale[r] = __half2half2(scales[row * P::SCALES + part * P::ELEMENTS / GROUP]);
        }
#pragma unroll
        for (int k = 0; k < P::ELEMENTS / 4; k++) {
            uint32_t a[2][2];  // of each row: two pairs
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int p = 2 * k + n / 2;
                half2 v = pair<FORMAT>(words[n % 2][p / PAIRS], p % PAIRS);
                if constexpr (scaled(FORMAT)) v = __hmul2(v, scale[n % 2]);
                a[n % 2][n / 2] = bits_of(v);
            }
            const uint32_t *q = query + (i * (P::ELEMENTS / 4) + k) * 2;
            mma(score, a[0][0], a[1][0], a[0][1], a[1][1], q[0], q[1]);
        }
    }
}

// Which element of a head row r (0 or 1) of tile m of the mixture is for this lane.
template <int FORMAT, int DIM> __device__ __forceinline__ int mixed_place(int m, int r, int lane) {
    constexpr int E = Rows<FORMAT, DIM, 8>::ELEMENTS;
    return (m / (E / 2) * 8 + lane / 4) * E + m % (E / 2) * 2 + r;
}

// Adds the values of 16 tokens to the mixture of 8 heads: mixed[m][2 r + e] is element mixed_place(m, r) of head
// lane % 4 * 2 + e. weights: of head lane / 4, tokens lane % 4 * 2 and the next, then the same 8 tokens on.
template <int FORMAT, int DIM>
__device__ __forceinline__ void add_values(const uint8_t *piece, const uint32_t (&weights)[2],
                                           float (&mixed)[DIM / 16][4], int lane) {
    using P = ValuePiece<FORMAT, DIM>;
    constexpr int WORDS = (P::LOAD + 3) / 4, COUPLES = P::LOAD == 2 ? 1 : 2, EACH = 16 / P::BITS;
    constexpr int LOW = P::BITS == 8 ? 0x5140 : 0x5410, HIGH = P::BITS == 8 ? 0x7362 : 0x7632;
    const half *scales = reinterpret_cast<const half *>(piece + P::SCALES_AT);
    const int token = lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < P::LOADS; i++) {
        const int part = i * 8 + lane / 4;
        uint32_t row[4][WORDS];
        half2 scale[2];
#pragma unroll
        for (int r = 0; r < 4; r++) load<P::LOAD>(row[r], piece + P::at(token + r % 2 + r / 2 * 8, part * P::LOAD));
        if constexpr (scaled(FORMAT)) {
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
                    const uint32_t both = __byte_perm(row[2 * h][w], row[2 * h + 1][w], n ? HIGH : LOW);
#pragma unroll
                    for (int e = 0; e < EACH; e++) {
                        half2 v = pair<FORMAT>(both, e);
                        if constexpr (scaled(FORMAT)) v = __hmul2(v, scale[h]);
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

}  // namespace exl
