// Attention of a step over a cache of halves.
#pragma once
#include "shape.cuh"

// A head of a row a block: all cached tokens and the new one. A warp has tokens warp, warp + 16, ...; eight are asked for
// before the wait.
struct Tokens {
    uint2 k[8], v[8];
    float4 cosines, sines;
    int place;
};
__device__ __forceinline__ void ask(Tokens &t, const Params &p, int layer, int head, int warp, int lane, int first) {
    const size_t at = ((size_t)layer * KV + head / (HEADS / KV)) * p.room * D + lane * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int n = first + warp + i * WARPS;
        if (n < p.cached)
            t.k[i] = *(const uint2 *)(p.k + at + (size_t)n * D), t.v[i] = *(const uint2 *)(p.v + at + (size_t)n * D);
        else t.k[i] = t.v[i] = make_uint2(0, 0);
    }
}
__device__ __forceinline__ float4 wide(uint2 a) {
    const float2 x = __half22float2(*(half2 *)&a.x), y = __half22float2(*(half2 *)&a.y);
    return make_float4(x.x, x.y, y.x, y.y);
}
__device__ __forceinline__ float4 turned(float4 a, float4 c, float4 n, int lane) {
    const float4 o = {__shfl_xor_sync(~0u, a.x, 16), __shfl_xor_sync(~0u, a.y, 16), __shfl_xor_sync(~0u, a.z, 16),
                      __shfl_xor_sync(~0u, a.w, 16)};
    const float sign = lane < 16 ? -1.f : 1.f;
    return make_float4(a.x * c.x + sign * o.x * n.x, a.y * c.y + sign * o.y * n.y, a.z * c.z + sign * o.z * n.z,
                       a.w * c.w + sign * o.w * n.w);
}
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
__device__ __forceinline__ void attend(Tokens &t, const Params &p, int layer, int head, int row, int parity, int tid,
                                       float *mix) {
    const int warp = tid / 32, lane = tid % 32, kvh = head / (HEADS / KV);
    const bool has_new = warp == p.cached % WARPS;
    const float *qkv = p.qkv + row * QKV;
    const float *const from[3] = {qkv + head * D + lane * 4, qkv + (HEADS + kvh) * D + lane * 4,
                                  qkv + (HEADS + KV + kvh) * D + lane * 4};
    float4 q, k, m = {};
    int n = 0;
    do q = look(from[0]), k = look(from[1]), m = look(from[2]), bounded(n);
    while (!is(q, parity) || (has_new && (!is(k, parity) || !is(m, parity))));
    q = plain(q), k = plain(k), m = plain(m);
    q = turned(q, t.cosines, t.sines, lane);
    float most = -1e30f, sum = 0.f;
    if (!has_new) m = make_float4(0.f, 0.f, 0.f, 0.f);
    else {
        k = turned(k, t.cosines, t.sines, lane);
        float d = dot(q, k);
#pragma unroll
        for (int i = 16; i; i >>= 1) d += __shfl_xor_sync(~0u, d, i);
        most = d * SOFTMAX, sum = 1.f;
        if (head % (HEADS / KV) == 0) {
            const size_t at = (((size_t)layer * KV + kvh) * p.room + p.cached + row) * D + lane * 4;
            half2 *kc = (half2 *)(p.k + at), *vc = (half2 *)(p.v + at);
            kc[0] = __floats2half2_rn(k.x, k.y), kc[1] = __floats2half2_rn(k.z, k.w),
            vc[0] = __floats2half2_rn(m.x, m.y), vc[1] = __floats2half2_rn(m.z, m.w);
        }
    }
    for (int first = 0;;) {
        float d[8];
#pragma unroll
        for (int i = 0; i < 8; i++) d[i] = dot(q, wide(t.k[i]));
        // Sums of eight tokens over 32 lanes: a lane ends with token lane & 7.
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float keep = lane & 4 ? d[i + 4] : d[i], away = lane & 4 ? d[i] : d[i + 4];
            d[i] = keep + __shfl_xor_sync(~0u, away, 4);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float keep = lane & 2 ? d[i + 2] : d[i], away = lane & 2 ? d[i] : d[i + 2];
            d[i] = keep + __shfl_xor_sync(~0u, away, 2);
        }
        {
            const float keep = lane & 1 ? d[1] : d[0], away = lane & 1 ? d[0] : d[1];
            d[0] = keep + __shfl_xor_sync(~0u, away, 1);
        }
        d[0] += __shfl_xor_sync(~0u, d[0], 8), d[0] += __shfl_xor_sync(~0u, d[0], 16);
        const float score = first + warp + (lane & 7) * WARPS < p.cached ? d[0] * SOFTMAX : -1e30f;
        float top = fmaxf(score, __shfl_xor_sync(~0u, score, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)), top = fmaxf(top, __shfl_xor_sync(~0u, top, 4)),
        top = fmaxf(top, most);
        const float old = __expf(most - top), e = __expf(score - top);
        most = top, sum *= old, m.x *= old, m.y *= old, m.z *= old, m.w *= old;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float w = __shfl_sync(~0u, e, i);
            const float4 o = wide(t.v[i]);
            sum += w, m.x += w * o.x, m.y += w * o.y, m.z += w * o.z, m.w += w * o.w;
        }
        first += 8 * WARPS;
        if (first >= p.cached) break;
        ask(t, p, layer, head, warp, lane, first);
    }
    ((float4 *)mix)[warp * 33 + lane] = m;
    if (lane == 0) mix[WARPS * 132 + warp] = most, mix[WARPS * 132 + WARPS + warp] = sum;
    bar(1, WARPS * 32);
    if (tid < D) {
        float a = 0.f, l = 0.f, top = -1e30f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, mix[WARPS * 132 + w]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float f = __expf(mix[WARPS * 132 + w] - top);
            a += f * mix[w * 132 + tid], l += f * mix[WARPS * 132 + WARPS + w];
        }
        leave(p.x[1] + row * H + t.place, a / l, parity);
    }
}
