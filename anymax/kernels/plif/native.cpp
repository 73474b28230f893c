// A piecewise linear increasing function of every entry, and its gradients.
//
// K pieces of width delta = 2 bound / K share [-bound, bound]; knot j stands at -bound + j delta and f is there
//
//     F_j = -bound + delta sum_{i<j} s_i.
//
// With t = (x + bound) / delta, j = floor(t) and r = t - j, the value is the interpolation F_j + (F_{j+1} - F_j) r: one
// lookup of two neighbours in a table of K + 1 numbers. Scores beyond the ends add the end's slope times what is beyond.
//
// The gradient goes back the same way: an entry with incoming gradient g adds g (1 - r) and g r to the two neighbours D_j and
// D_{j+1} of a table of sums, and then dL/ds_i = delta sum_{j>i} D_j.
//
// Places in the grid and sums are double for both types, so the type alone decides which piece an entry falls in, not the
// instruction level; and rounding F_j to float before a double interpolation keeps the rounded function increasing.

#include <vector>

#include "rows.h"
#include "vector.h"

namespace anymax {
namespace {

// Everything is done kWidth entries at a time, the number of doubles in a vector.
constexpr int kWidth = kLanes<double>;
typedef int32_t Index __attribute__((vector_size(4 * kWidth)));
typedef double Pair __attribute__((vector_size(16)));
template <class T> struct Narrow;
template <> struct Narrow<float> { typedef float Type __attribute__((vector_size(4 * kWidth))); };
template <> struct Narrow<double> { typedef Vec<double> Type; };

template <class T> ANYMAX_INLINE Vec<double> load_wide(const T* from) {
    typename Narrow<T>::Type v;
    std::memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, Vec<double>);
}

template <class T> ANYMAX_INLINE void store_narrow(T* to, Vec<double> v) {
    const auto narrow = __builtin_convertvector(v, typename Narrow<T>::Type);
    std::memcpy(to, &narrow, sizeof narrow);
}

struct Grid {
    int64_t pieces;
    double bound, delta, per_delta;
    Grid(int64_t pieces, double bound)
        : pieces(pieces), bound(bound), delta(2 * bound / double(pieces)), per_delta(double(pieces) / (2 * bound)) {}
};

struct Place {
    Index piece;
    Vec<double> share;   // how far into the piece, from 0 to 1
    Vec<double> beyond;  // how far beyond the nearer end, 0 inside, NaN for NaN
};

// Every comparison is written so that a NaN takes the branch that keeps the piece in range.
ANYMAX_INLINE Place locate(const Grid& grid, Vec<double> x) {
    const Vec<double> low = splat(-grid.bound), high = splat(grid.bound), end = splat(double(grid.pieces));
    Vec<double> inside = x > low ? x : low;
    inside = inside < high ? inside : high;
    Vec<double> t = (inside + high) * grid.per_delta;
    t = t < end ? t : end;
    const Index last = Index{} + int32_t(grid.pieces - 1);
    Index piece = __builtin_convertvector(t, Index);
    piece = piece < last ? piece : last;
    return {piece, t - __builtin_convertvector(piece, Vec<double>), x - inside};
}

// Splits `count` entries among threads in contiguous parts that are whole vectors, but for the last.
struct Parts {
    int64_t count, number, size;
    Parts(int64_t count, int64_t per_thread, int available) : count(count) {
        number = std::max<int64_t>(1, std::min<int64_t>(available, count / per_thread));
        size = (count / number / 64 + 1) * 64;
    }
    int64_t from(int64_t part) const { return std::min(count, part * size); }
    int64_t to(int64_t part) const { return std::min(count, (part + 1) * size); }
};

template <class T, class Table> ANYMAX_INLINE Vec<double> value(const Grid& grid, const Table* knots, double first, double last, Vec<double> x) {
    const Place place = locate(grid, x);
    Vec<double> left, right;
    for (int i = 0; i < kWidth; ++i) {
        const Table* knot = knots + place.piece[i];
        left[i] = knot[0];
        right[i] = knot[1];
    }
    const Vec<double> slope = place.beyond > 0 ? splat(last) : splat(first);
    return left + (right - left) * place.share + place.beyond * slope;
}

constexpr int64_t kOutOfMemory = -1;

template <class T>
int64_t forward(const T* scores, const T* slopes, T* out, int64_t count, int64_t pieces, double bound, int threads) {
    const Grid grid(pieces, bound);
    const Buffer<T> table = allocate<T>(pieces + 1);
    if (!table) return kOutOfMemory;
    T* knots = table.get();
    double sum = 0;
    for (int64_t j = 0; j < pieces; ++j) {
        knots[j] = static_cast<T>(sum * grid.delta - bound);
        sum += slopes[j];
    }
    knots[pieces] = static_cast<T>(sum * grid.delta - bound);
    const double first = slopes[0], last = slopes[pieces - 1];
    const Parts parts(count, kEntriesPerThread, threads);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        int64_t i = parts.from(part);
        const int64_t to = parts.to(part);
        for (; i + kWidth <= to; i += kWidth) store_narrow(out + i, value<T>(grid, knots, first, last, load_wide(scores + i)));
        if (i < to) {
            T lanes[kWidth] = {};
            std::copy(scores + i, scores + to, lanes);
            store_narrow(lanes, value<T>(grid, knots, first, last, load_wide(lanes)));
            std::copy(lanes, lanes + (to - i), out + i);
        }
    }
    return 0;
}

// The sums of one thread: D at the knots, and the gradient times what is beyond either end.
struct Sums {
    double* knots;
    Vec<double> below = {}, above = {};
};

template <class T, bool kBySlopes>
ANYMAX_INLINE Vec<double> step(const Grid& grid, const T* slopes, Vec<double> grad, Vec<double> x, Sums& sums) {
    const Place place = locate(grid, x);
    Vec<double> slope;
    for (int i = 0; i < kWidth; ++i) slope[i] = slopes[place.piece[i]];
    if constexpr (kBySlopes) {
        const Vec<double> right = grad * place.share, left = grad - right;
        for (int i = 0; i < kWidth; ++i) {
            double* knot = sums.knots + place.piece[i];
            Pair pair;
            std::memcpy(&pair, knot, sizeof pair);
            pair += Pair{left[i], right[i]};
            std::memcpy(knot, &pair, sizeof pair);
        }
        // An infinite score that nobody asks about has no say.
        const Vec<double> ends = grad != 0 ? grad * place.beyond : Vec<double>{};
        sums.above += place.beyond > 0 ? ends : Vec<double>{};
        sums.below += place.beyond > 0 ? Vec<double>{} : ends;
    }
    return grad * slope;
}

template <class T, bool kBySlopes>
void backward_part(const Grid& grid, const T* grad, const T* scores, const T* slopes, T* by_scores, int64_t from, int64_t to, Sums& sums) {
    int64_t i = from;
    for (; i + kWidth <= to; i += kWidth)
        store_narrow(by_scores + i, step<T, kBySlopes>(grid, slopes, load_wide(grad + i), load_wide(scores + i), sums));
    if (i < to) {
        T grad_lanes[kWidth] = {}, lanes[kWidth] = {};
        std::copy(grad + i, grad + to, grad_lanes);
        std::copy(scores + i, scores + to, lanes);
        store_narrow(lanes, step<T, kBySlopes>(grid, slopes, load_wide(grad_lanes), load_wide(lanes), sums));
        std::copy(lanes, lanes + (to - i), by_scores + i);
    }
}

template <class T>
int64_t backward(const T* grad, const T* scores, const T* slopes, T* by_scores, T* by_slopes, int64_t count, int64_t pieces,
                 double bound, int threads) {
    const Grid grid(pieces, bound);
    // A thread's table costs about as much to clear and to add up as a few entries per knot cost to place.
    const Parts parts(count, by_slopes ? std::max(kEntriesPerThread, pieces) : kEntriesPerThread, threads);
    const int64_t stride = pieces + 16;
    const Buffer<double> tables = allocate<double>(by_slopes ? parts.number * stride : 1);
    if (!tables) return kOutOfMemory;
    std::vector<double> below(parts.number), above(parts.number);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        Sums sums = {tables.get() + part * stride};
        if (!by_slopes) {
            backward_part<T, false>(grid, grad, scores, slopes, by_scores, parts.from(part), parts.to(part), sums);
            continue;
        }
        std::fill(sums.knots, sums.knots + pieces + 1, 0.0);
        backward_part<T, true>(grid, grad, scores, slopes, by_scores, parts.from(part), parts.to(part), sums);
        below[part] = sum<double>(sums.below);
        above[part] = sum<double>(sums.above);
    }
    if (!by_slopes) return 0;
    double total = 0, total_below = 0, total_above = 0;
    for (int64_t part = 0; part < parts.number; ++part) {
        total_below += below[part];
        total_above += above[part];
    }
    for (int64_t j = pieces; j > 0; --j) {
        double here = 0;
        for (int64_t part = 0; part < parts.number; ++part) here += tables[part * stride + j];
        total += here;
        const double ends = (j == 1 ? total_below : 0) + (j == pieces ? total_above : 0);
        by_slopes[j - 1] = static_cast<T>(total * grid.delta + ends);
    }
    return 0;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_PLIF(T, NAME)                                                                                                     \
    ANYMAX_EXPORT int64_t anymax_plif_forward_##NAME(const T* scores, const T* slopes, T* out, int64_t count, int64_t pieces,   \
                                                     double bound, int threads) {                                                \
        return anymax::forward(scores, slopes, out, count, pieces, bound, threads);                                              \
    }                                                                                                                            \
    ANYMAX_EXPORT int64_t anymax_plif_backward_##NAME(const T* grad, const T* scores, const T* slopes, T* by_scores,            \
                                                      T* by_slopes, int64_t count, int64_t pieces, double bound, int threads) {  \
        return anymax::backward(grad, scores, slopes, by_scores, by_slopes, count, pieces, bound, threads);                      \
    }

ANYMAX_PLIF(float, float32)
ANYMAX_PLIF(double, float64)
