// Experiment, self-checking: the step of a Llama 8B in one persistent kernel, with all that its layers compute but the
// head. docs/performance.md, "A persistent step", has what it shows.
//
// - Weights: 4-bit codes, scales of 4 bits, squared, for groups of 32 rows; a piece is 128 rows of 16 columns as on the
//   engine's card. They lie in the order in which each block reads them. A producer brings them through a ring in shared
//   memory, whatever the others wait for.
// - Blocks by twos (a cluster) share the rows of the products: each multiplies its half of x with the columns of both, and
//   gives the other half of the sums (st.async). So a block brings and converts half of x.
// - x is left as floats, in the order in which its reader's rows are stored, which is any (act-order). The lowest bit says
//   of which pass a float is; a counter only says when looking pays. The reader makes three signed bytes of each, 22 bits
//   below the largest of a piece, which stand in columns of an integer product: sums are exact whatever their order.
// - -DROWS=1, 2 or 4 tokens in a pass; -DCLUSTER=1 for blocks that share nothing; -DSTAGES as many as fit (10; 8, 4; 8).
//
//     nvcc -O3 -std=c++20 -gencode arch=compute_90a,code=sm_90a -DSTAGES=10 persistent_step.cu -o persistent_step
//     ./persistent_step LAYERS CACHED
//
// -DNOMEM computes with whatever the ring holds: how long it takes without weights from memory; the check fails then.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "step.cuh"

static void check(cudaError_t e, int line) {
    if (e == cudaSuccess) return;
    printf("line %d: %s\n", line, cudaGetErrorString(e));
    exit(1);
}
#define CK(x) check(x, __LINE__)

// In double, a thread a column.
__global__ void reference(const uint8_t *w, const double *x, const int *order, double *out, int rows, int columns,
                          double factor) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, c = column % 16;
    if (column >= columns) return;
    double sum = 0;
    for (int k = 0; k < rows; k++) {
        const int word = k % 128 / 32 * 2 + k % 32 / 16, lane = (c % 8) * 4 + k % 16 / 4;
        const uint8_t *u = w + ((size_t)(column / 16) * (rows / 128) + k / 128) * UNIT;
        const int code = u[(word / 4) * 512 + lane * 16 + (word % 4) * 4 + k % 4] >> (c / 8 * 4) & 15;
        const int q = (((const uint32_t *)(u + 1024))[c % 8] >> (16 *(c / 8) + k % 128 / 32 * 4) & 15) + 1;
        sum += x[order[k]] * (code - 8) * q * q;
    }
    out[column] = sum * factor;
}
static uint32_t state = 12345;
static uint32_t draw() {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state;
}
static float normal() {
    float v = 0;
    for (int i = 0; i < 6; i++) v += (draw() % 65536) / 65536.f - 0.5f;
    return v * 1.41421f;
}
template <class T>
T *on_card(const std::vector<T> &v) {
    T *d;
    CK(cudaMalloc(&d, v.size() * sizeof(T)));
    CK(cudaMemcpy(d, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return d;
}
template <class T>
std::vector<T> from_card(const T *d, size_t n) {
    std::vector<T> v(n);
    CK(cudaMemcpy(v.data(), d, n * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
}
int main(int argc, char **argv) {
    const int layers = argc > 1 ? atoi(argv[1]) : 32, cached = argc > 2 ? atoi(argv[2]) : 128, room = cached + 64,
              shared_bytes = STAGES * STAGE + sizeof(Shared);
    if (layers < 1 || cached < 1) {
        printf("persistent_step LAYERS CACHED: both at least 1\n");
        return 2;
    }
    int clusters = 0, processors;
    CK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    CK(cudaFuncSetAttribute(step, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    cudaLaunchConfig_t launch{};
    cudaLaunchAttribute cluster{};
    launch.gridDim = processors / C * C, launch.blockDim = THREADS, launch.dynamicSmemBytes = shared_bytes,
    launch.attrs = &cluster, launch.numAttrs = 1;
    cluster.id = cudaLaunchAttributeClusterDimension, cluster.val.clusterDim = {C, 1, 1};
    CK(cudaOccupancyMaxActiveClusters(&clusters, step, &launch));
    const int blocks = clusters * C;
    if (blocks * MOST_SETS < 2 * F / 16 || blocks * 2 < H / 16) {
        printf("%d blocks fit this card; what a block keeps is for %d and more\n", blocks, 2 * F / 16 / MOST_SETS);
        return 2;
    }
    const struct {
        int rows, columns;
    } shapes[4] = {{H, QKV}, {H, H}, {H, 2 * F}, {F, H}};  // gate and up: tiles by turns
    size_t begin[5] = {0};
    for (int i = 0; i < 4; i++)
        begin[i + 1] = begin[i] + (size_t)shapes[i].columns / 16 * (shapes[i].rows / 128);  // units
    std::vector<uint8_t> weights(begin[4] * UNIT);
    for (size_t i = 0; i + 4 <= weights.size(); i += 4) *(uint32_t *)&weights[i] = draw() ^ draw() << 16;
    std::vector<size_t> start(blocks + 1, 0), order;
    for (int b = 0; b < blocks; b++) {  // in the order in which each block reads
        start[b] = order.size() / WARPS * layers;
        for (int i = 0; i < 4; i++)
            for (int set = C == 1 && i == 2 ? 2 * b : b / C; set < shapes[i].columns / 16 / C;
                 set = C > 1 || i != 2 ? set + clusters
                       : set % 2       ? set + 2 * clusters - 1
                                       : set + 1)
                for (int k = 0; k < shapes[i].rows / 2048; k++)
                    for (int w = 0; w < WARPS; w++) {
                        const int pieces = shapes[i].rows / 128;
                        order.push_back(begin[i] + (size_t)(set * C + w / GROUPS) * pieces + b % C * (pieces / C) +
                                        w % GROUPS * (pieces / 16) + k);
                    }
    }
    start[blocks] = order.size() / WARPS * layers;
    std::vector<uint8_t> stream(weights.size() * layers);
    size_t at = 0;
    for (int b = 0; b < blocks; b++)
        for (int l = 0; l < layers; l++)
            for (size_t u = start[b] / layers * WARPS; u < start[b + 1] / layers * WARPS; u++, at++)
                memcpy(&stream[at * UNIT], &weights[order[u] * UNIT], UNIT);
    std::vector<int> orders[4], places[4];  // of rows: which input stands there, and where an input stands
    for (int i = 0; i < 4; i++) {
        orders[i].resize(shapes[i].rows), places[i].resize(shapes[i].rows);
        for (int k = 0; k < shapes[i].rows; k++) orders[i][k] = k;
        for (int k = shapes[i].rows - 1; k; k--) std::swap(orders[i][k], orders[i][draw() % (k + 1)]);
        for (int k = 0; k < shapes[i].rows; k++) places[i][orders[i][k]] = k;
    }
    std::vector<float> h(ROWS * H), norm_in((size_t)layers * H), norm_mid(norm_in.size()), turns(128);
    for (auto &v : h) v = normal();
    for (int r = 0; r < ROWS; r++) h[r * H + 77] = 40.f;  // an outlier
    for (auto &v : norm_in) v = 0.5f + (draw() % 1000) / 1000.f;
    for (auto &v : norm_mid) v = 0.5f + (draw() % 1000) / 1000.f;
    for (int i = 0; i < 64; i++) {
        const double a = cached * pow(500000., -i / 64.);
        turns[i] = cos(a), turns[64 + i] = sin(a);
    }
    const size_t entries = (size_t)layers * KV * room * D;
    std::vector<half> keys(entries), values(entries);
    for (size_t i = 0; i < entries; i++) keys[i] = __float2half(normal()), values[i] = __float2half(normal());
    Params p{};
    p.w = on_card(stream), p.start = on_card(start), p.layers = layers, p.blocks = blocks, p.cached = cached,
    p.room = room;
    const int readers[4] = {1, 2, 3, 0};  // who reads what a product leaves; qkv's goes to attention
    for (int i = 0; i < 4; i++) {
        p.of[i] = {shapes[i].rows / 2048, shapes[i].columns / 16 / C, 0,
                   i == 3 ? 1.f / (120 * 4.6f * 120) : 1.f / (64 * 4.6f * 120), on_card(places[readers[i]])};
        for (int b = 0; b < blocks; b++) {
            const int t = (p.of[i].sets / (C == 1 && i == 2 ? 2 : 1) - b / C + clusters - 1) / clusters;
            p.of[i].warps += ((C > 1 && i == 2 ? (t + (b % C == 0)) / 2 : t) * 16 * ROWS + 31) / 32;
        }
        p.x[i] = on_card(std::vector<float>(ROWS * F, std::bit_cast<float>(1u)));
    }
    p.attention_place = on_card(places[1]), p.norm_in = on_card(norm_in), p.norm_mid = on_card(norm_mid),
    p.turns = on_card(turns), p.h = on_card(h);
    p.qkv = on_card(std::vector<float>(ROWS * QKV, std::bit_cast<float>(1u)));
    for (int i = 0; i < 2; i++) p.squares[i] = on_card(std::vector<float>(ROWS * 256, std::bit_cast<float>(1u)));
    p.k = on_card(keys), p.v = on_card(values);
    CK(cudaMalloc(&p.counts, (layers * 5 + 1) * 4));
    cudaStream_t stream_;
    CK(cudaStreamCreate(&stream_));
    const auto once = [&]() {
        CK(cudaMemsetAsync(p.counts, 0, (layers * 5 + 1) * 4, stream_));
        void *a[] = {&p};
        CK(cudaLaunchCooperativeKernel((void *)step, blocks, THREADS, a, shared_bytes, stream_));
        p.parity ^= layers & 1, p.first ^= layers + 1 & 1;
    };
    once();
    if (cudaStreamSynchronize(stream_) != cudaSuccess) {
        printf("failed: %s\n", cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    const auto got = from_card(p.h, ROWS * H);
    double worst = 0;
    std::vector<double> x(F), out(2 * F);
    double *dx, *dout;
    CK(cudaMalloc(&dx, F * 8)), CK(cudaMalloc(&dout, 2 * F * 8));
    const uint8_t *plain = on_card(weights);
    for (int row = 0; row < ROWS; row++) {
        std::vector<double> r(h.begin() + row * H, h.begin() + (row + 1) * H);
        const auto product = [&](int i) {
            CK(cudaMemcpy(dx, x.data(), shapes[i].rows * 8, cudaMemcpyHostToDevice));
            static int *o[4];
            if (!o[i]) o[i] = on_card(orders[i]);
            reference<<<(shapes[i].columns + 127) / 128, 128>>>(plain + begin[i] * UNIT, dx, o[i], dout, shapes[i].rows,
                                                                shapes[i].columns, p.of[i].factor);
            CK(cudaMemcpy(out.data(), dout, shapes[i].columns * 8, cudaMemcpyDeviceToHost));
        };
        const auto normed = [&](const float *w) {
            double q = 0;
            for (double v : r) q += v * v;
            q = 1 / sqrt(q / H + 1e-5);
            for (int i = 0; i < H; i++) x[i] = r[i] * q * w[i];
        };
        for (int l = 0; l < layers; l++) {
            normed(&norm_in[(size_t)l * H]), product(0);
            for (int i = 0; i < HEADS + KV; i++)
                for (int j = 0; j < 64; j++) {
                    double *v = &out[i * D], a = v[j], c = v[64 + j];
                    v[j] = a * turns[j] - c * turns[64 + j], v[64 + j] = c * turns[j] + a * turns[64 + j];
                }
            for (int head = 0; head < HEADS; head++) {
                const int kv = head / 4;
                const auto of = [&](const std::vector<half> &cache, int first, int t, int i) {
                    return t < cached ? (double)__half2float(cache[(((size_t)l * KV + kv) * room + t) * D + i])
                                      : out[(first + kv) * D + i];
                };
                std::vector<double> score(cached + 1), m(D, 0.);
                double most = -1e9, sum = 0;
                for (int t = 0; t <= cached; t++) {
                    double d = 0;
                    for (int i = 0; i < D; i++) d += out[head * D + i] * of(keys, HEADS, t, i);
                    score[t] = d / sqrt(128.), most = std::max(most, score[t]);
                }
                for (int t = 0; t <= cached; t++) {
                    const double w = exp(score[t] - most);
                    sum += w;
                    for (int i = 0; i < D; i++) m[i] += w * of(values, HEADS + KV, t, i);
                }
                for (int i = 0; i < D; i++) x[head * D + i] = m[i] / sum;
            }
            product(1);
            for (int i = 0; i < H; i++) r[i] += out[i];
            normed(&norm_mid[(size_t)l * H]), product(2);
            for (int i = 0; i < F; i++) {
                const double g = out[i / 16 * 32 + i % 16], u = out[i / 16 * 32 + 16 + i % 16];
                x[i] = g / (1 + exp(-g)) * u;
            }
            product(3);
            for (int i = 0; i < H; i++) r[i] += out[i];
        }
        double num = 0, den = 0;
        for (int i = 0; i < H; i++) num += (got[row * H + i] - r[i]) * (got[row * H + i] - r[i]), den += r[i] * r[i];
        worst = std::max(worst, sqrt(num / den));
    }
    cudaEvent_t e0, e1;
    CK(cudaEventCreate(&e0)), CK(cudaEventCreate(&e1));
    const auto median = [&](auto &&job, int runs) {
        std::vector<float> t(runs);
        for (float &v : t) {
            CK(cudaEventRecord(e0, stream_));
            job();
            CK(cudaEventRecord(e1, stream_));
            CK(cudaEventSynchronize(e1));
            CK(cudaEventElapsedTime(&v, e0, e1));
        }
        std::sort(t.begin(), t.end());
        return t[runs / 2];
    };
    bool equal = true;
    for (int i = 0; i < 50; i++) {
        CK(cudaMemcpyAsync(p.h, h.data(), ROWS * H * 4, cudaMemcpyHostToDevice, stream_));
        once();
        CK(cudaStreamSynchronize(stream_));
        equal &= from_card(p.h, ROWS * H) == got;
    }
    const double ms = median(once, 40);
    const std::vector<unsigned long long> none(25, 0);
    CK(cudaMemcpyToSymbol(clocks, none.data(), sizeof clocks));
    once();
    unsigned long long seen[5][5];
    CK(cudaStreamSynchronize(stream_)), CK(cudaMemcpyFromSymbol(seen, clocks, sizeof seen));
    const char *names[5] = {"qkv", "o", "gate, up", "down", "attention"};
    for (int i = 0; i < 5; i++) {
        const double n = double(i == 4 ? HEADS * ROWS : blocks) * layers;
        printf("%-9s waits %.0f clocks, x %.0f, tiles %.0f, sums and storing %.0f, tells %.0f\n", names[i],
               seen[i][0] / n, seen[i][1] / n, seen[i][2] / n, seen[i][3] / n, seen[i][4] / n);
    }
    const size_t copied = 2ull << 30;
    char *a, *c;
    CK(cudaMalloc(&a, copied)), CK(cudaMalloc(&c, copied));
    const double copy = 2e-9 * copied /
                        median([&]() { CK(cudaMemcpyAsync(c, a, copied, cudaMemcpyDeviceToDevice, stream_)); }, 10),
                 gb = stream.size() * 1e-9;
    printf(
        "%d rows, %d layers, %d cached, %d blocks, %d stages of which %d under way, %d KB: error %.1e, equal runs: %s; "
        "%.1f us a layer, %.2f TB/s, %.0f %% of the copy's %.2f\n",
        ROWS, layers, cached, blocks, STAGES, CAP, shared_bytes >> 10, worst, equal ? "yes" : "NO", ms * 1e3 / layers,
        gb / ms, 100 * gb / ms / copy, copy);
    return worst < 2e-5 && equal ? 0 : 1;
}
