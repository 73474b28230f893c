// Cross-entropy of rows, whose scores x give way to the gradient softmax(x) - target in place.
//
// The target is 1 - s at one class plus s / n everywhere. With m the maximum and Z = sum exp(x - m),
//
//     loss = log Z + m - (1 - s) x_target - s mean(x).
//
// Three passes over a row that the first one brought into the cache: the maximum, the exponentials, their scale.

#include "rows.h"
#include "scan.h"

namespace anymax {
namespace {

// What the second pass brings: sum exp(x - m), and sum (x - m), which label smoothing needs.
struct Totals {
    double exponentials, scores;
};

template <bool stores, class T> Totals exponentiate(T* x, int64_t n, T top) {
    constexpr int64_t kBlock = kCarryEvery * kLanes<T>;
    Totals totals = {0, 0};
    for (int64_t from = 0; from < n; from += kBlock) {
        const int64_t to = std::min(n, from + kBlock);
        Vec<T> exponentials = {}, scores = {};
        int64_t i = from;
        for (; i + kLanes<T> <= to; i += kLanes<T>) {
            const Vec<T> z = load(x + i) - top, e = exponential(z);
            if constexpr (stores) store(x + i, e);
            exponentials += e;
            scores += z;
        }
        if (i < to) {
            const Vec<T> z = load_up_to(x + i, to - i, -kInfinity<T>) - top, e = exponential(z);
            for (int64_t lane = 0; lane < to - i; ++lane) totals.scores += double(z[lane]);
            if constexpr (stores) store_up_to(x + i, e, to - i);
            exponentials += e;
        }
        totals.exponentials += double(sum<T>(exponentials));
        totals.scores += double(sum<T>(scores));
    }
    return totals;
}

template <class T> double row_loss(T* x, int64_t n, int64_t target, double smoothing, bool wants_gradient) {
    const Row row = scan(x, n);
    const T top = static_cast<T>(row.top);
    if (row.has_nan || std::isinf(top)) {
        // Nothing to choose from, or nothing to compare.
        const T nan = std::numeric_limits<T>::quiet_NaN();
        if (wants_gradient) std::fill(x, x + n, nan);
        return double(nan);
    }
    const double wanted = double(x[target]) - double(top);
    const Totals totals = wants_gradient ? exponentiate<true>(x, n, top) : exponentiate<false>(x, n, top);
    if (wants_gradient) {
        const T scale = static_cast<T>(1 / totals.exponentials), even = static_cast<T>(smoothing / double(n));
        for (int64_t i = 0; i < n; ++i) x[i] = x[i] * scale - even;
        x[target] -= static_cast<T>(1 - smoothing);
    }
    const double spread = smoothing > 0 ? smoothing * totals.scores / double(n) : 0;
    return std::log(totals.exponentials) - (1 - smoothing) * wanted - spread;
}

template <class T>
int64_t cross_entropy(T* scores, int64_t stride, const int64_t* target, T* losses, double smoothing, int wants_gradient,
                      int64_t rows, int64_t n, int threads) {
    const int64_t part = rows_per_part(rows, 1);
    for_parts_of_rows<T>(rows, n, part, threads, 1, [=](int64_t first, int64_t last, T*) {
        for (int64_t row = first; row < last; ++row)
            losses[row] = static_cast<T>(row_loss(scores + row * stride, n, target[row], smoothing, wants_gradient != 0));
    });
    return 0;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_CROSS_ENTROPY(T, NAME)                                                                                        \
    ANYMAX_EXPORT int64_t anymax_cross_entropy_##NAME(T* scores, int64_t stride, const int64_t* target, T* losses,          \
                                                      double smoothing, int wants_gradient, int64_t rows, int64_t n,        \
                                                      int threads) {                                                         \
        return anymax::cross_entropy(scores, stride, target, losses, smoothing, wants_gradient, rows, n, threads);           \
    }

ANYMAX_CROSS_ENTROPY(float, float32)
ANYMAX_CROSS_ENTROPY(double, float64)
