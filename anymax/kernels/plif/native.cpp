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

#include "rows.h"
#include "vector.h"

namespace anymax {
namespace {

// Everything is done kWidth entries at a time, the number of doubles in a vector.
constexpr int kWidth = kLanes<double>;
typedef int32_t Index __attribute__((vector_size(4 * kWidth)));
typedef double Pair __attribute__((vector_size(16)));
typedef uint64_t IndexPair __attribute__((vector_size(4 * kWidth)));

template <class T> ANYMAX_INLINE Vec<double> load_wide(const T* from) {
    Vec<double> v;
    for (int i = 0; i < kWidth; ++i) v[i] = from[i];
    return v;
}

template <class T> ANYMAX_INLINE void store_narrow(T* to, Vec<double> v) {
    for (int i = 0; i < kWidth; ++i) to[i] = static_cast<T>(v[i]);
}

// The lanes of an index as numbers. Taking them out is much of the cost of a lookup, so it is done two at a time.
struct Lanes {
    uint64_t lane[kWidth];
    ANYMAX_INLINE explicit Lanes(Index index) {
        for (int i = 0; i < kWidth; i += 2) {
            const uint64_t two = ((IndexPair)index)[i / 2];
            lane[i] = uint32_t(two);
            lane[i + 1] = two >> 32;
        }
    }
    ANYMAX_INLINE uint64_t operator[](int i) const { return lane[i]; }
};

// table[j] and table[j + 1] of every lane's j.
template <class T> struct Neighbours {
    Vec<double> left, right;
    ANYMAX_INLINE Neighbours(const T* table, Index j) {
        const Lanes at(j);
#if defined(__AVX512F__)
        if constexpr (sizeof(T) == 4) {
            // Both neighbours in one load of eight bytes: faster than two loads, and than a gather.
            const auto two_pairs = [&](int i) {
                const __m128d first = _mm_load_sd(reinterpret_cast<const double*>(table + at[i]));
                return _mm_loadh_pd(first, reinterpret_cast<const double*>(table + at[i + 1]));
            };
            const auto wide = [](__m256 v) { return (Vec<double>)_mm512_maskz_cvtps_pd(0xff, v); };
            const __m256 low = _mm256_castpd_ps(_mm256_set_m128d(two_pairs(2), two_pairs(0)));
            const __m256 high = _mm256_castpd_ps(_mm256_set_m128d(two_pairs(6), two_pairs(4)));
            const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), odd = _mm256_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15);
            left = wide(_mm256_permutex2var_ps(low, even, high));
            right = wide(_mm256_permutex2var_ps(low, odd, high));
            return;
        }
#endif
        for (int i = 0; i < kWidth; ++i) {
            left[i] = table[at[i]];
            right[i] = table[at[i] + 1];
        }
    }
};

struct Grid {
    int64_t pieces;
    double bound, delta, per_delta;
    Grid(int64_t pieces, double bound)
        : pieces(pieces), bound(bound), delta(2 * bound / double(pieces)), per_delta(double(pieces) / (2 * bound)) {}
    // Whether a piece's number fits an index and a place in the grid is finite.
    bool is_sound() const {
        return pieces >= 1 && pieces <= INT32_MAX && bound > 0 && per_delta > 0 && per_delta < kInfinity<double>;
    }
};

struct Place {
    Index piece;
    Vec<double> share;   // how far into the piece, from 0 to 1
    Vec<double> beyond;  // how far beyond the nearer end, 0 inside, NaN for NaN
};

// Finds places in a grid. Every comparison is written so that a NaN takes the branch that keeps the piece in range.
struct Locate {
    Vec<double> low, high, scale;
    Index last;
    explicit Locate(const Grid& grid)
        : low(splat(-grid.bound)),
          high(splat(grid.bound)),
          scale(splat(grid.per_delta)),
          last(Index{} + int32_t(grid.pieces - 1)) {}
    ANYMAX_INLINE Place operator()(Vec<double> x) const {
        Vec<double> inside = x > low ? x : low;
        inside = inside < high ? inside : high;
        const Vec<double> t = (inside + high) * scale;
        Index piece = __builtin_convertvector(t, Index);
        piece = piece < last ? piece : last;
        Vec<double> start;
        for (int i = 0; i < kWidth; ++i) start[i] = piece[i];
        return {piece, t - start, x - inside};
    }
};

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

// The lanes that end the left half of their block, in the lanes of its right half; zeros elsewhere.
template <int half, int... lane> ANYMAX_INLINE Vec<double> ends_of_left(Vec<double> v, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(v, Vec<double>{}, (lane & half ? lane / (2 * half) * (2 * half) + half - 1 : kWidth)...);
}

// Every lane plus those before it. A right half adds its sums to the end of the left one, so sums of positive numbers never fall.
template <int half = 1> ANYMAX_INLINE Vec<double> sums_of_lanes(Vec<double> v) {
    if constexpr (half == kWidth) return v;
    else return sums_of_lanes<2 * half>(v + ends_of_left<half>(v, std::make_integer_sequence<int, kWidth>{}));
}

// Calls visit(i, value(0) + ... + value(i)) for every i and returns the last sum. Results of type double are summed one by one,
// as the reference does: another order would show in their last digits.
template <class T, class ValueAt, class Visit> double running_sums(int64_t count, const ValueAt& value, const Visit& visit) {
    double sum = 0;
    int64_t i = 0;
    for (; sizeof(T) == 4 && i + kWidth <= count; i += kWidth) {
        Vec<double> v;
        for (int lane = 0; lane < kWidth; ++lane) v[lane] = value(i + lane);
        v = sums_of_lanes(v) + sum;
        for (int lane = 0; lane < kWidth; ++lane) visit(i + lane, v[lane]);
        sum = v[kWidth - 1];
    }
    for (; i < count; ++i) visit(i, sum += value(i));
    return sum;
}

// f of a vector of scores.
template <class T> struct Value {
    const T* knots;
    Locate locate;
    Vec<double> first, last;
    ANYMAX_INLINE Vec<double> operator()(Vec<double> x) const {
        const Place place = locate(x);
        const Neighbours<T> knot(knots, place.piece);
        return knot.left + (knot.right - knot.left) * place.share + place.beyond * (place.beyond > 0 ? last : first);
    }
};

constexpr int64_t kOutOfMemory = -1, kUnsoundGrid = -2;

template <class T>
int64_t forward(const T* scores, const T* slopes, T* out, int64_t count, int64_t pieces, double bound, int threads) {
    const Grid grid(pieces, bound);
    if (!grid.is_sound()) return kUnsoundGrid;
    const Buffer<T> table = allocate<T>(pieces + 1);
    if (!table) return kOutOfMemory;
    T* knots = table.get();
    knots[0] = static_cast<T>(-bound);
    running_sums<T>(
        pieces, [=](int64_t j) { return double(slopes[j]); },
        [=](int64_t j, double sum) { knots[j + 1] = static_cast<T>(sum * grid.delta - bound); });
    prefer_large_pages(out, count);
    const Value<T> shared = {knots, Locate(grid), splat<double>(slopes[0]), splat<double>(slopes[pieces - 1])};
    const Parts parts(count, kEntriesPerThread, threads);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        const Value<T> value = shared;
        int64_t i = parts.from(part);
        const int64_t to = parts.to(part);
        for (; i + kWidth <= to; i += kWidth) store_narrow(out + i, value(load_wide(scores + i)));
        if (i < to) {
            T lanes[kWidth] = {};
            std::copy(scores + i, scores + to, lanes);
            store_narrow(lanes, value(load_wide(lanes)));
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
ANYMAX_INLINE Vec<double> step(const Locate& locate, const T* slopes, Vec<double> grad, Vec<double> x, Sums& sums) {
    const Place place = locate(x);
    const Lanes piece(place.piece);
    Vec<double> slope;
    for (int i = 0; i < kWidth; ++i) slope[i] = slopes[piece[i]];
    if constexpr (kBySlopes) {
        const Vec<double> right = grad * place.share, left = grad - right;
        for (int i = 0; i < kWidth; ++i) {
            double* knot = sums.knots + piece[i];
            Pair pair;
            std::memcpy(&pair, knot, sizeof pair);
            pair += Pair{left[i], right[i]};
            std::memcpy(knot, &pair, sizeof pair);
        }
        if (any<double>(place.beyond != 0)) {
            // An infinite score whose result is not used is ignored.
            const Vec<double> ends = grad != 0 ? grad * place.beyond : Vec<double>{};
            sums.above += place.beyond > 0 ? ends : Vec<double>{};
            sums.below += place.beyond > 0 ? Vec<double>{} : ends;
        }
    }
    return grad * slope;
}

template <class T, bool kBySlopes>
void backward_part(const Grid& grid, const T* grad, const T* scores, const T* slopes, T* by_scores, int64_t from, int64_t to,
                   Sums& sums) {
    const Locate locate(grid);
    int64_t i = from;
    for (; i + kWidth <= to; i += kWidth)
        store_narrow(by_scores + i, step<T, kBySlopes>(locate, slopes, load_wide(grad + i), load_wide(scores + i), sums));
    if (i < to) {
        T grad_lanes[kWidth] = {}, lanes[kWidth] = {};
        std::copy(grad + i, grad + to, grad_lanes);
        std::copy(scores + i, scores + to, lanes);
        store_narrow(lanes, step<T, kBySlopes>(locate, slopes, load_wide(grad_lanes), load_wide(lanes), sums));
        std::copy(lanes, lanes + (to - i), by_scores + i);
    }
}

template <class T>
int64_t backward(const T* grad, const T* scores, const T* slopes, T* by_scores, T* by_slopes, int64_t count, int64_t pieces,
                 double bound, int threads) {
    const Grid grid(pieces, bound);
    if (!grid.is_sound()) return kUnsoundGrid;
    // A thread's table has to be cleared and added up, which pays once there are as many entries as knots.
    const Parts parts(count, by_slopes ? std::max(kEntriesPerThread, pieces) : kEntriesPerThread, threads);
    const int64_t below = pieces + 1, above = pieces + 2, stride = pieces + 16;
    const Buffer<double> tables = allocate<double>(by_slopes ? parts.number * stride : 1);
    if (!tables) return kOutOfMemory;
    prefer_large_pages(by_scores, count);
    prefer_large_pages(tables.get(), by_slopes ? parts.number * stride : 0);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        double* table = tables.get() + part * stride;
        Sums sums = {table};
        if (!by_slopes) {
            backward_part<T, false>(grid, grad, scores, slopes, by_scores, parts.from(part), parts.to(part), sums);
            continue;
        }
        std::fill(table, table + stride, 0.0);
        backward_part<T, true>(grid, grad, scores, slopes, by_scores, parts.from(part), parts.to(part), sums);
        table[below] = sum<double>(sums.below);
        table[above] = sum<double>(sums.above);
    }
    if (!by_slopes) return 0;
    double* sums = tables.get();
    for (int64_t part = 1; part < parts.number; ++part)
        for (int64_t j = 0; j < stride; ++j) sums[j] += sums[part * stride + j];
    const double total = running_sums<T>(
        pieces, [=](int64_t i) { return sums[pieces - i]; },
        [=](int64_t i, double sum) { by_slopes[pieces - 1 - i] = static_cast<T>(sum * grid.delta); });
    if (pieces > 1) by_slopes[pieces - 1] = static_cast<T>(sums[pieces] * grid.delta + sums[above]);
    by_slopes[0] = static_cast<T>(total * grid.delta + sums[below] + (pieces > 1 ? 0 : sums[above]));
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
