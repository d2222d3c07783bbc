// x as digits, and products with it.
#pragma once
#include "shape.cuh"

// A block's half of x as digits. A warp makes those of a piece at a time; who multiplies pieces together meets behind
// them.
__device__ __forceinline__ void load_x(const float *x, int rows, int pieces, int rank, int warp, int lane, int parity,
                                       Shared &s) {
    const int group = warp % GROUPS, part = warp / GROUPS, first = (rank * GROUPS + group) * pieces;
    constexpr int AHEAD = ROWS == 1 ? 4 : 8 / ROWS;  // pieces asked for at a time, of all rows
    for (int begin = part; begin < pieces; begin += AHEAD * C) {
        float4 v[AHEAD][ROWS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (begin + i * C < pieces) v[i][row] = look(x + row * rows + (first + begin + i * C) * 128 + lane * 4);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int piece = begin + i * C;
            if (piece >= pieces) break;
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float4 now = v[i][row];
                if (!__all_sync(~0u, is(now, parity)))
                    now = take(x + row * rows + (first + piece) * 128 + lane * 4, parity);
                now = plain(now);
                const float most = fmaxf(fmaxf(fabsf(now.x), fabsf(now.y)), fmaxf(fabsf(now.z), fabsf(now.w)));
                // Below 2^22 in units of the lowest digit.
                const int exponent = max(int(__reduce_max_sync(~0u, __float_as_uint(most)) >> 23), 30);
                const float up = __uint_as_float(uint32_t(254 + 21 - exponent) << 23);
                const float of[4] = {now.x, now.y, now.z, now.w};
                uint32_t u[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    u[k] = (__float_as_uint(__fmaf_rn(of[k], up, 12582912.f)) + (0x8080u - 0x4B400000u)) ^ 0x8080u;
                uint32_t *to = &s.x[(group * pieces + piece) * 2 + lane / 16][0][lane & 3][lane >> 2 & 3];
                const uint32_t a = __byte_perm(u[0], u[1], 0x5140), b = __byte_perm(u[2], u[3], 0x5140);
                to[(0 * ROWS + row) * 16] =
                    __byte_perm(__byte_perm(u[0], u[1], 0x0062), __byte_perm(u[2], u[3], 0x0062), 0x5410);
                to[(1 * ROWS + row) * 16] = __byte_perm(a, b, 0x7632);
                to[(2 * ROWS + row) * 16] = __byte_perm(a, b, 0x5410);
                if (lane == 0)
                    s.scale[group * pieces + piece][row] = __uint_as_float(uint32_t(exponent - 21) << 23) *
                                                           0.0625f;  // codes stand for sixteen times as much
            }
        }
    }
    if (C > 1) bar(3 + group, 32 * C);
    else __syncwarp();
}
// Tiles by C. `pairs`: gate and up of a pair are for one block, else each tile for one.
__device__ __forceinline__ int multiply(const Product &p, int set, int clusters, bool pairs, int rank, int warp,
                                        int lane, const uint8_t *ring, int &st, int &ph, Shared &s) {
    const int n = lane >> 2, kq = lane & 3, group = warp % GROUPS, of = warp / GROUPS;
    const uint4 *xs[N];  // lanes of columns that nobody needs read what others read
#pragma unroll
    for (int m = 0; m < N; m++)
        xs[m] = (const uint4 *)&s.x[group * p.pieces * 2][m * 8 + (m * 8 + n < COLUMNS ? n : n & 1)][kq][0];
    const float *const scales = s.scale[group * p.pieces];
    const uint8_t *const unit = ring + warp * UNIT + lane * 16;
    const uint32_t mask = 0xF0F0F0F0u, flip = 0x80808080u;
    int t = 0;
    for (; set < p.sets; set = C > 1 || !pairs ? set + clusters : set % 2 ? set + 2 * clusters - 1 : set + 1, t++) {
        float sum[N][4] = {};
        for (int i = 0; i < p.pieces; i++) {
#ifndef NOMEM
            mbar_wait(&s.full[st], ph);
#endif
            const uint8_t *u = unit + st * STAGE;
            const uint4 c0 = *(const uint4 *)u, c1 = *(const uint4 *)(u + 512);
            const uint32_t sc = *(const uint32_t *)(u + 1024 - lane * 16 + n * 4);
            __syncwarp();
            if (lane == 0) mbar_arrive(&s.empty[st]);
            const uint32_t w[8] = {c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w};
            int acc[N][4] = {};
            uint4 b[N][2];
#pragma unroll
            for (int m = 0; m < N; m++)
                b[m][0] = xs[m][i * 2 * COLUMNS * 4], b[m][1] = xs[m][(i * 2 + 1) * COLUMNS * 4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t a0 = masked(w[2 * j] << 4, mask, flip), a1 = masked(w[2 * j], mask, flip),
                               a2 = masked(w[2 * j + 1] << 4, mask, flip), a3 = masked(w[2 * j + 1], mask, flip);
                const uint32_t q = (sc >> (4 * j) & 0x000F000Fu) + 0x00010001u;
                int s0 = q & 0xFFFF, s1 = q >> 16;
                s0 *= s0, s1 *= s1;
#pragma unroll
                for (int m = 0; m < N; m++) {
                    int c[4];
                    imma(c, a0, a1, a2, a3, j % 2 ? b[m][j / 2].z : b[m][j / 2].x,
                         j % 2 ? b[m][j / 2].w : b[m][j / 2].y);
                    acc[m][0] += c[0] * s0, acc[m][1] += c[1] * s0, acc[m][2] += c[2] * s1, acc[m][3] += c[3] * s1;
                }
            }
#pragma unroll
            for (int m = 0; m < N; m++) {
                const float e = scales[i * ROWS + (ROWS == 1 ? 0 : (m * 8 + 2 * kq) % ROWS)],
                            o = ROWS == 1 ? e : scales[i * ROWS + (m * 8 + 2 * kq + 1) % ROWS];
                sum[m][0] += e * float(acc[m][0]), sum[m][1] += o * float(acc[m][1]), sum[m][2] += e * float(acc[m][2]),
                    sum[m][3] += o * float(acc[m][3]);
            }
            if (++st == STAGES) st = 0, ph ^= 1;
        }
        const int owner = C == 1 ? 0 : pairs ? t & 1 : of, slot = C > 1 && pairs ? (t >> 1) * 2 + of : t;
        const uint32_t at = at_rank(&s.part[slot][rank * GROUPS + group][n * 2 * ROWS], owner),
                       barrier = at_rank(&s.sums, owner);
        // Digits from the top, 2^16, 2^8 and 1; of a row they stand in columns ROWS apart.
        if (ROWS == 1) {
            float low = kq == 0   ? 65536.f * sum[0][0] + 256.f * sum[0][1]
                        : kq == 1 ? sum[0][0]
                                  : 0.f,
                  high = kq == 0   ? 65536.f * sum[0][2] + 256.f * sum[0][3]
                         : kq == 1 ? sum[0][2]
                                   : 0.f;
            low += __shfl_xor_sync(~0u, low, 1), high += __shfl_xor_sync(~0u, high, 1);
            if (kq == 0) give(at, low, high, barrier);
        } else if (ROWS == 2) {
            // Lanes 0 to 2 have a digit each, of both rows and both columns: each ends with one of the four sums, that of
            // column 8 (kq & 1) and row kq / 2.
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) v[k] = sum[0][k] * (kq == 0 ? 65536.f : kq == 1 ? 256.f : kq == 2 ? 1.f : 0.f);
            const bool odd = kq & 1, high = kq & 2;
            const float low_row = (odd ? v[2] : v[0]) + __shfl_xor_sync(~0u, odd ? v[0] : v[2], 1),
                        high_row = (odd ? v[3] : v[1]) + __shfl_xor_sync(~0u, odd ? v[1] : v[3], 1);
            const float one = (high ? high_row : low_row) + __shfl_xor_sync(~0u, high ? low_row : high_row, 2);
            give(at + kq / 2 * 8 + (kq & 1) * 4, one, barrier);  // [row][column >> 3]
        } else {
            float v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) { v[k] = kq < 2 ? 65536.f * sum[0][k] + sum[N - 1][k] : 256.f * sum[0][k]; }
            // Lanes two apart have the same rows: each ends with one of them.
            const bool second = kq & 2;
            const float low = (second ? v[1] : v[0]) + __shfl_xor_sync(~0u, second ? v[0] : v[1], 2),
                        high = (second ? v[3] : v[2]) + __shfl_xor_sync(~0u, second ? v[2] : v[3], 2);
            give(at + (kq & 1) * 16 + kq / 2 * 8, low, high, barrier);
        }
    }
    if (C == 1) {
        __syncwarp();
        if (lane == 0) mbar_arrive(&s.sums);
    }
    return t;
}
__device__ __forceinline__ float sum_of(const Shared &s, int slot, int row, int column) {
    float v = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) v += s.part[slot][w][((column & 7) * ROWS + row) * 2 + (column >> 3)];
    return v;
}
