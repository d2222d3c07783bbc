// A Llama 8B, what the kernel is given, and what a block keeps.
#pragma once
#include <cuda_fp16.h>

#include "instructions.cuh"

#ifndef STAGES
#define STAGES 8
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef ROWS
#define ROWS 1
#endif
constexpr int WARPS = 16, GROUPS = WARPS / C, THREADS = WARPS * 32 + 128, UNIT = 1024 + 32, STAGE = WARPS * UNIT;
constexpr int H = 4096, F = 14336, HEADS = 32, KV = 8, D = 128, QKV = (HEADS + 2 * KV) * D, MOST_SETS = 14;
static_assert(ROWS == 1 || ROWS == 2 || ROWS == 4, "tokens whose digits are added up");
constexpr int COLUMNS = 3 * ROWS, N = (COLUMNS + 7) / 8;  // of the integer product: digit * ROWS + row; tiles of eight
constexpr float SOFTMAX = 0.08838834764831845f;
struct Product {
    int pieces, sets, warps;  // pieces of a tile that a warp multiplies; sets of C tiles; warps that leave something
    float factor;
    const int *place;  // of each output in its reader's order
};
struct Params {
    const uint8_t *w;
    const size_t *start;
    int layers, blocks, cached, room, parity, first;  // tags of the first layer, and of what it reads
    Product of[4];                                    // qkv, o, gate and up, down
    float *qkv, *x[4], *squares[2];  // [ROWS][...], tagged; squares of 256 tiles, behind down and behind o
    const int *attention_place;
    const float *norm_in, *norm_mid, *turns;
    float *h;
    half *k, *v;  // [layers][KV][room][D]
    unsigned *counts;
};
__device__ unsigned long long clocks[5][5];
struct Shared {                               // beside the ring
    uint32_t x[F / C / 64][COLUMNS][4][4];    // [64 rows][column][quad of four rows][16 rows]: four bytes, one a row
    float scale[F / C / 128][ROWS];           // what the lowest digit of a piece is worth
    float part[MOST_SETS][WARPS][16 * ROWS];  // sums of a tile: [column & 7][row][column >> 3]
    float mix[WARPS * 132 + 2 * WARPS], h[2][ROWS][16], rms[ROWS];
    unsigned long long full[STAGES], empty[STAGES], sums;
};
