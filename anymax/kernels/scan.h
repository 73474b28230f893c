// The first look at a row: its maximum, and whether it holds a NaN.

#pragma once

#include "vector.h"

namespace anymax {

struct Row {
    double top;
    bool has_nan;
};

template <class T> Row scan(const T* x, int64_t n) {
    constexpr int kChains = 4;
    Vec<T> best[kChains];
    Mask<T> nan[kChains] = {};
    for (auto& b : best) b = splat(-kInfinity<T>);
    const auto look = [&](Vec<T> v, int chain) {
        best[chain] = at_least<T>(v, best[chain]);
        nan[chain] |= v != v;
    };
    int64_t i = 0;
    for (; i + kChains * kLanes<T> <= n; i += kChains * kLanes<T>)
        for (int chain = 0; chain < kChains; ++chain) look(load(x + i + chain * kLanes<T>), chain);
    for (; i < n; i += kLanes<T>) look(load_up_to(x + i, n - i, -kInfinity<T>), 0);
    for (int chain = 1; chain < kChains; ++chain) {
        look(best[chain], 0);
        nan[0] |= nan[chain];
    }
    return {maximum<T>(best[0]), any<T>(nan[0])};
}

}  // namespace anymax
