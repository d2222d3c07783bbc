// What is left of a distribution, and what is known of it.
//
// It is the same for all threads of a block, which have it once, in shared memory. In memory of their own it took 400
// bytes of each of 512 threads, more than L1 has left.
#pragma once
#include "sample.cuh"

namespace exl {

// Of a logit so far below the best, in nats. In the code once: it is called from forty places.
__device__ __noinline__ double weight_at(double below) { return exp(below); }

// From adjusted logits to those of now.
struct Curve {
    bool smooth_first;
    bool smooth;
    double top, square, cube;  // of the smoothing: top - square x^2 + cube x^3, x below top
    double divisor;

    __device__ __forceinline__ double smoothed(double x) const {
        if (!smooth || x == -INFINITY) return x;  // 0 times infinity is no number
        const double below = x - top;
        return top - square * below * below + cube * below * below * below;
    }
    __device__ __forceinline__ double at(double x) const {
        if (divisor == 1.0) return smoothed(x);
        return smooth_first ? smoothed(x) / divisor : smoothed(x / divisor);
    }
    __device__ __forceinline__ void smooth_by(const ExlChain &chain, double best) {
        top = best;
        square = (3.0 - chain.smoothing_curve) / 2.0 * chain.smoothing_factor;
        cube = (chain.smoothing_curve - 1.0) / 2.0 * chain.smoothing_factor;
        smooth = true;
    }
    __device__ __forceinline__ void heat(double temperature) {
        smooth_first = smooth;
        divisor = temperature;
    }
};

struct Left {
    Curve curve;
    Wide low, high;          // places: no token before the first is left, which is, and none behind the last
    Wide gap_low, gap_high;  // of what is missing between them: nothing where low is above high
    Wide taken;              // XTC took the tokens before this place, but for sheltered ones; ~0: none
    const uint32_t *sheltered;

    __device__ __forceinline__ bool is_sheltered(Wide found) const {
        return produced(sheltered + id_of(found) / 32) >> (id_of(found) % 32) & 1;
    }
    __device__ __forceinline__ bool holds(Wide found) const {
        return found >= low && found <= high && (found < gap_low || found > gap_high) &&
               (found <= taken || is_sheltered(found));
    }
    __device__ __forceinline__ double logit(Wide found) const { return curve.at((double)logit_of(found)); }
    __device__ __forceinline__ double best() const { return logit(high); }
};

// Of the tokens left, where x is the logit below the best: how many they are, and sums of exp(x), x exp(x), x and x^2.
struct Measure {
    double mass, slope, count, first, second;

    __device__ __forceinline__ double entropy() const { return log(mass) - slope / mass; }
    __device__ __forceinline__ double deviation() const {
        const double mean = first / count;
        return sqrt(fmax(second / count - mean * mean, 0.0));
    }
};

// What the grid knows of its distribution, and has not to sum again.
struct Known {
    Measure found;
    bool mass, spread;  // whether the sums of weights, and the others, still hold

    __device__ __forceinline__ void forget() { mass = spread = false; }
    __device__ __forceinline__ void heat(double temperature) {
        mass = false, found.first /= temperature, found.second /= temperature * temperature;
    }
};

}  // namespace exl
