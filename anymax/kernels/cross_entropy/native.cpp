// Cross-entropy of rows, whose scores x give way to the gradient softmax(x) - target in place.
//
// The target is 1 - s at one class plus s / n everywhere. With m the maximum and Z = sum exp(x - m),
//
//     loss = log Z + m - (1 - s) x_target - s mean(x).
//
// Three passes over a row that the first one brought into the cache: the maximum, the exponentials, their scale.
//
// Of a small linear layer the scores of a row are made, used and forgotten in the first cache, products of the gradient
// included. Its `columns` are the weight transposed, with the bias as last row, in rows of `stride` entries: n, and zeros
// up to a whole group of vectors.

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

template <class T> struct Layer {
    const T* columns;
    int64_t inputs, n, stride;
};

template <class T> void scores_of(const Layer<T>& layer, const T* hidden, T* scores) {
    const T* bias = layer.columns + layer.inputs * layer.stride;
    for (int64_t i = 0; i < layer.stride; i += kGroup * kLanes<T>) {
        Vec<T> sums[kGroup];
        for (int k = 0; k < kGroup; ++k) sums[k] = load(bias + i + k * kLanes<T>);
        for (int64_t d = 0; d < layer.inputs; ++d)
            for (int k = 0; k < kGroup; ++k) sums[k] += hidden[d] * load(layer.columns + d * layer.stride + i + k * kLanes<T>);
        for (int k = 0; k < kGroup; ++k) store(scores + i + k * kLanes<T>, sums[k]);
    }
}

template <class T> T dot(const T* a, const T* b, int64_t stride) {
    Vec<T> sums[kGroup] = {};
    for (int64_t i = 0; i < stride; i += kGroup * kLanes<T>)
        for (int k = 0; k < kGroup; ++k) sums[k] += load(a + i + k * kLanes<T>) * load(b + i + k * kLanes<T>);
    for (int k = 1; k < kGroup; ++k) sums[0] += sums[k];
    return sum<T>(sums[0]);
}

// Several rows at a time: the sums are read and written once for all of them.
constexpr int kRows = 4;

template <class T> void add_multiples(T* sums, const T* rows, const T* factors, int count, int64_t stride) {
    for (int64_t i = 0; i < stride; i += kLanes<T>) {
        Vec<T> total = load(sums + i);
        for (int k = 0; k < count; ++k) total += factors[k] * load(rows + k * stride + i);
        store(sums + i, total);
    }
}

template <class T> void add_products(const Layer<T>& layer, T* sums, const T* rows, const T* hidden, const T* coefficient, int count) {
    for (int64_t d = 0; d <= layer.inputs; ++d) {
        T factors[kRows];
        for (int k = 0; k < count; ++k) factors[k] = coefficient[k] * (d < layer.inputs ? hidden[k * layer.inputs + d] : T(1));
        if (count == kRows) add_multiples(sums + d * layer.stride, rows, factors, kRows, layer.stride);
        else add_multiples(sums + d * layer.stride, rows, factors, count, layer.stride);
    }
}

// `coefficient`, by_hidden and by_columns are null where no gradient, or not that one, is wanted. The last has a sum for
// each part of the rows.
template <class T>
int64_t layer_cross_entropy(const Layer<T> layer, const T* hidden, const int64_t* target, const T* coefficient, T* losses,
                            T* by_hidden, T* by_columns, double smoothing, int64_t rows, int64_t part, int threads) {
    const auto work = [=](int64_t first, int64_t last, T* scratch) {
        T* sums = by_columns ? by_columns + first / part * (layer.inputs + 1) * layer.stride : nullptr;
        for (int64_t start = first; start < last; start += kRows) {
            const int count = static_cast<int>(std::min<int64_t>(kRows, last - start));
            for (int k = 0; k < count; ++k) {
                const int64_t row = start + k;
                T* x = scratch + k * layer.stride;
                scores_of(layer, hidden + row * layer.inputs, x);
                losses[row] = static_cast<T>(row_loss(x, layer.n, target[row], smoothing, coefficient != nullptr));
                for (int64_t d = 0; by_hidden && d < layer.inputs; ++d)
                    by_hidden[row * layer.inputs + d] = coefficient[row] * dot(x, layer.columns + d * layer.stride, layer.stride);
            }
            if (sums) add_products(layer, sums, scratch, hidden + start * layer.inputs, coefficient + start, count);
        }
    };
    return for_parts_of_rows<T>(rows, layer.stride, part, threads, kRows * layer.stride, work) ? 0 : -1;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_CROSS_ENTROPY(T, NAME)                                                                                        \
    ANYMAX_EXPORT int64_t anymax_cross_entropy_##NAME(T* scores, int64_t stride, const int64_t* target, T* losses,          \
                                                      double smoothing, int wants_gradient, int64_t rows, int64_t n,        \
                                                      int threads) {                                                         \
        return anymax::cross_entropy(scores, stride, target, losses, smoothing, wants_gradient, rows, n, threads);           \
    }                                                                                                                        \
    ANYMAX_EXPORT int64_t anymax_layer_cross_entropy_##NAME(                                                                 \
        const T* columns, int64_t inputs, int64_t n, int64_t stride, const T* hidden, const int64_t* target,                 \
        const T* coefficient, T* losses, T* by_hidden, T* by_columns, double smoothing, int64_t rows, int64_t part,          \
        int threads) {                                                                                                       \
        return anymax::layer_cross_entropy<T>({columns, inputs, n, stride}, hidden, target, coefficient, losses, by_hidden,  \
                                              by_columns, smoothing, rows, part, threads);                                   \
    }

ANYMAX_CROSS_ENTROPY(float, float32)
ANYMAX_CROSS_ENTROPY(double, float64)
