// The kernel.
#pragma once
#include "attention.cuh"
#include "products.cuh"

__device__ __forceinline__ unsigned counted(const unsigned *p) {
    unsigned f;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(f) : "l"(p) : "memory");
    return f;
}
extern __shared__ __align__(1024) uint8_t sm[];
__global__ void __cluster_dims__(C, 1, 1) __launch_bounds__(THREADS, 1) step(const __grid_constant__ Params p) {
    uint8_t *ring = sm;
    Shared &s = *(Shared *)(sm + STAGES * STAGE);
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, b = blockIdx.x, cluster = b / C, rank = b % C,
              clusters = p.blocks / C;
    if (tid == 0) {
        for (int i = 0; i < STAGES; i++) mbar_init(&s.full[i], 1), mbar_init(&s.empty[i], WARPS);
        mbar_init(&s.sums, C == 1 ? 1 + WARPS : 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    const auto expected = [&](int layer, int op) {
        return unsigned(op == 0   ? layer ? p.of[3].warps : p.blocks
                        : op == 1 ? HEADS * ROWS * D / 32
                                  : p.of[op - 1].warps);
    };  // warps that leave what it reads
    if (warp >= WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
        if (warp == WARPS + 1) {  // the sums of squares, and how many bytes of sums will come
            for (int layer = 0; layer < p.layers; layer++)
                for (int op = 0; op < 4; op++) {
                    const int parity = (op ? p.parity : p.first) + layer & 1;
                    if (op % 2 == 0) {
                        for (int n = 0; counted(p.counts + layer * 5 + (op ? 3 : 0)) < expected(layer, op); bounded(n))
                            __nanosleep(100);
                        for (int row = 0; row < ROWS; row++) {
                            const float4 x = plain(take(p.squares[op / 2] + row * 256 + lane * 4, parity)),
                                         y = plain(take(p.squares[op / 2] + row * 256 + 128 + lane * 4, parity));
                            float v = (x.x + x.y) + (x.z + x.w) + ((y.x + y.y) + (y.z + y.w));
#pragma unroll
                            for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(~0u, v, i);
                            if (lane == 0) s.rms[row] = rsqrtf(v / H + 1e-5f);
                        }
                        __syncwarp();
                    }
                    int t = (p.of[op].sets - cluster + clusters - 1) / clusters;
                    if (op == 2) t = (t + (rank == 0)) / 2 * 2;
                    if (lane == 0) {
                        if (C == 1) mbar_arrive(&s.sums);
                        else mbar_expect(&s.sums, t * WARPS * 64 * ROWS);
                    }
                    mbar_wait(&s.sums, op & 1);
                }
        } else if (warp == WARPS && lane == 0) {
            uint64_t policy;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
            const uint8_t *g = p.w + p.start[b] * STAGE, *end = p.w + p.start[b + 1] * STAGE;
#ifdef NOMEM
            g = end;
#endif
            for (int i = 0, st = 0, ph = 1, ws = 0, wp = 0; g < end; g += STAGE, i++) {
                if (i >= CAP) {
                    mbar_wait(&s.full[ws], wp);
                    if (++ws == STAGES) ws = 0, wp ^= 1;
                }
                mbar_wait(&s.empty[st], ph);
                mbar_expect(&s.full[st], STAGE);
                bulk(ring + st * STAGE, g, STAGE, &s.full[st], policy);
                if (++st == STAGES) st = 0, ph ^= 1;
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
    int st = 0, ph = 0, edge = 0;
    long long t0 = clock64();
    const auto tick = [&](int op, int i) {
        if (tid == 0) {
            const long long n = clock64();
            atomicAdd(&clocks[op][i], (unsigned long long)(n - t0));
            t0 = clock64();
        }
    };
    const auto tell = [&](int threads) {  // who has stored: the first `threads`
        __syncwarp();
        if (tid < threads && lane == 0)
            asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p.counts + edge), "r"(1u) : "memory");
        edge++;
    };
    const auto wait = [&](unsigned warps) {
        if (tid == 0)
            for (int n = 0; counted(p.counts + edge - 1) < warps; bounded(n)) {}
        bar(1, WARPS * 32);
    };
    // What the residual stream becomes for its reader: sixteen lanes have a tile.
    const auto leave_residual = [&](float v, float norm, float *squares, float *x, int tile, int j, int row, int place,
                                    int parity, bool own) {
        float sq = v * v;
#pragma unroll
        for (int i = 8; i; i >>= 1) sq += __shfl_xor_sync(~0u, sq, i);
        if (own && j == 0) leave(squares + row * 256 + tile, sq, parity);
        if (own) leave(x + row * H + place, v * norm, parity);
    };
    if (tid < 32) {  // as if down of a layer before had left it
        for (int row = 0; row < ROWS; row++) {
            const int k = tid / 16, tile = (cluster + k * clusters) * C + rank, j = tid % 16;
            const bool own = tile < H / 16;
            s.h[k][row][j] = own ? p.h[row * H + tile * 16 + j] : 0.f;
            leave_residual(s.h[k][row][j], own ? p.norm_in[tile * 16 + j] : 0.f, p.squares[0], p.x[0], tile, j, row,
                           own ? p.of[3].place[tile * 16 + j] : 0, p.first, own);
        }
    }
    tell(1);
    for (int layer = 0; layer < p.layers; layer++) {
        const int now = (p.parity + layer) & 1;
#pragma unroll 1
        for (int op = 0; op < 4; op++) {
            if (op == 1) {
                if (b < HEADS * ROWS) {
                    Tokens tokens;
                    ask(tokens, p, layer, b % HEADS, warp, lane, 0);
                    tokens.cosines = ((const float4 *)p.turns)[lane & 15],
                    tokens.sines = ((const float4 *)p.turns)[16 + (lane & 15)],
                    tokens.place = p.attention_place[b % HEADS * D + (tid < D ? tid : 0)];
                    wait(p.of[0].warps), tick(4, 0);
                    attend(tokens, p, layer, b % HEADS, b / HEADS, now, tid, s.mix), tick(4, 3);
                    tell(D), tick(4, 4);
                } else edge++;
            }
            wait(expected(layer, op)), tick(op, 0);
            load_x(p.x[op], op == 3 ? F : H, p.of[op].pieces, rank, warp, lane, op ? now : p.first + layer & 1, s),
                tick(op, 1);
            int t = multiply(p.of[op], C == 1 && op == 2 ? 2 * cluster : cluster, clusters, op == 2, rank, warp, lane,
                             ring, st, ph, s);
            tick(op, 2);
            if (op == 2) t = C == 1 ? t / 2 : (t + (rank == 0)) / 2;
            const int outputs = t * 16 * ROWS;  // [tile][row][column]
            if (tid < (outputs + 31 & ~31)) {
                const int k = tid / (16 * ROWS), row = tid / 16 % ROWS, j = tid % 16,
                          tile = op == 2 ? cluster + (C * k + rank) * clusters : (cluster + k * clusters) * C + rank;
                const bool own = k < t;
                const int place = own && op ? p.of[op].place[tile * 16 + j] : 0;
                const int next = layer + 1 < p.layers ? layer + 1 : 0;
                const float norm = own && op % 2 ? (op == 1 ? p.norm_mid + (size_t)layer * H
                                                            : p.norm_in + (size_t)next * H)[tile * 16 + j]
                                                 : 0.f;
                mbar_wait(&s.sums, op & 1);
                float v = own ? sum_of(s, op == 2 ? 2 * k : k, row, j) * p.of[op].factor : 0.f;
                if (op == 0) {
                    if (own) leave(p.qkv + row * QKV + tile * 16 + j, v * s.rms[row], now);
                } else if (op == 2) {
                    v *= s.rms[row];
                    if (own)
                        leave(p.x[3] + row * F + place,
                              v / (1.f + __expf(-v)) * (sum_of(s, 2 * k + 1, row, j) * p.of[2].factor * s.rms[row]),
                              now);
                } else {
                    if (own) v += s.h[k][row][j], s.h[k][row][j] = v;
                    leave_residual(v, norm, p.squares[op == 1], p.x[(op + 1) & 3], tile, j, row, place,
                                   op == 1 ? now : p.first + layer + 1 & 1, own);
                    if (own && op == 3 && layer == p.layers - 1) p.h[row * H + tile * 16 + j] = v;
                }
            }
            tick(op, 3), tell(outputs), tick(op, 4);
        }
    }
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
