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
//
// A block of entries is taken in steps, of vectors where all lanes do the same and of one entry at a time where tables are
// read and written, with scratch in between: lanes change hands in memory, which takes less than shuffles, and waits for one
// entry's cache line overlap those of the next.

#include "rows.h"
#include "vector.h"

namespace anymax {
namespace {

// Numbers are widened kWidth at a time, the number of doubles in a vector.
constexpr int kWidth = kLanes<double>;
typedef int32_t Index __attribute__((vector_size(4 * kWidth)));
typedef double Pair __attribute__((vector_size(16)));

// Entries of a block, whole vectors at every level: few, so that scratch leaves the first cache to the tables.
constexpr int kBlock = 96;
// How many entries before their turn memory is asked for. Left to itself the processor waits at every new page. Each is used
// once, and so asked for past the caches that tables are in.
constexpr int kAhead = 512;

template <class T> ANYMAX_INLINE Vec<double> load_wide(const T* from) {
    Vec<double> v;
    for (int i = 0; i < kWidth; ++i) v[i] = from[i];
    return v;
}

template <class T> ANYMAX_INLINE void store_narrow(T* to, Vec<double> v) {
    for (int i = 0; i < kWidth; ++i) to[i] = static_cast<T>(v[i]);
}

template <class T> ANYMAX_INLINE void prefetch_block(const T* from) {
    for (int i = 0; i < kBlock; i += 64 / sizeof(T)) __builtin_prefetch(from + kAhead + i, 0, 0);
}

// Every second lane of two vectors, from the first or the second on.
template <int first, int... lane>
ANYMAX_INLINE Vec<double> every_second(Vec<double> a, Vec<double> b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (2 * lane + first)...);
}
template <int first, int... lane> ANYMAX_INLINE Vec<double> every_second(Vec<float> v, std::integer_sequence<int, lane...>) {
    const auto half = __builtin_shufflevector(v, v, (2 * lane + first)...);
#if defined(__AVX512F__)
    return (Vec<double>)_mm512_maskz_cvtps_pd(0xff, (__m256)half);
#else
    return __builtin_convertvector(half, Vec<double>);
#endif
}

// The left or the right of kWidth pairs.
template <int first> ANYMAX_INLINE Vec<double> one_of_pairs(const double* pairs) {
    return every_second<first>(load(pairs), load(pairs + kWidth), std::make_integer_sequence<int, kWidth>{});
}
template <int first> ANYMAX_INLINE Vec<double> one_of_pairs(const float* pairs) {
    return every_second<first>(load(pairs), std::make_integer_sequence<int, kWidth>{});
}

ANYMAX_INLINE void store_pairs(double* to, Vec<double> left, Vec<double> right) {
    using Lanes = std::make_integer_sequence<int, kWidth>;
    store(to, interleave_low(left, right, Lanes{}));
    store(to + kWidth, interleave_high(left, right, Lanes{}));
}

struct Grid {
    int64_t pieces;
    double bound, delta, per_delta;
    Grid(int64_t pieces, double bound)
        : pieces(pieces), bound(bound), delta(2 * bound / double(pieces)), per_delta(double(pieces) / (2 * bound)) {}
    // Whether a piece's number fits an index and a place in the grid is finite.
    bool is_sound() const {
        return pieces >= 1 && pieces <= INT32_MAX && bound > 0 && per_delta > 0 && per_delta < kInfinity<double>;
    }
    // The piece of a score inside, as `locate` finds it.
    int64_t piece(double x) const { return std::min(int64_t((x + bound) * per_delta), pieces - 1); }
};

struct Place {
    Index piece;
    Vec<double> share;   // how far into the piece, from 0 to 1
    Vec<double> beyond;  // how far beyond the nearer end, 0 inside, NaN for NaN
};

// Comparisons are written so that a NaN takes the branch that keeps the piece in range.
template <bool kInside> ANYMAX_INLINE Place locate(const Grid& grid, Vec<double> x) {
    Vec<double> inside = x;
    if constexpr (!kInside) {
        inside = at_least<double>(x, splat(-grid.bound));
        inside = inside < grid.bound ? inside : splat(grid.bound);
    }
    const Vec<double> t = (inside + grid.bound) * grid.per_delta;
    const Index last = Index{} + int32_t(grid.pieces - 1);
    Index piece = __builtin_convertvector(t, Index);
    piece = piece < last ? piece : last;
    Vec<double> start;
    for (int i = 0; i < kWidth; ++i) start[i] = piece[i];
    return {piece, t - start, x - inside};
}

// The larger magnitude; NaN is larger than all, as it is among integers.
template <class T> ANYMAX_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
    return (Vec<T>)((Mask<T>)a > (Mask<T>)b ? (Mask<T>)a : (Mask<T>)b);
}

template <class T> ANYMAX_INLINE T largest_magnitude(const T* block) {
    const Mask<T> all_but_sign = ~(Mask<T>)(-Vec<T>{});
    Vec<T> largest = {};
    for (int i = 0; i < kBlock; i += kLanes<T>)
        largest = larger<T>(largest, (Vec<T>)((Mask<T>)load(block + i) & all_but_sign));
    return fold_lanes<T>(largest, larger<T>);
}

// Splits `count` entries among threads in contiguous parts that are whole blocks, but for the last.
struct Parts {
    int64_t count, number, size;
    Parts(int64_t count, int64_t per_thread, int available) : count(count) {
        number = std::max<int64_t>(1, std::min<int64_t>(available, count / per_thread));
        size = (count / number / kBlock + 1) * kBlock;
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

// The lanes in the opposite order.
template <int... lane> ANYMAX_INLINE Vec<double> reversed(Vec<double> v, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(v, v, (kWidth - 1 - lane)...);
}

// Running sums of `count` numbers, forwards or backwards: to[i step] = shift + scale (from[0] + ... + from[i step]). Returns the
// last sum. Results of type double are summed one by one, as the reference does: another order would show in their last digits.
template <class T, int step, class From>
double running_sums(const From* from, T* to, int64_t count, double scale, double shift) {
    static_assert(step == 1 || step == -1);
    using Turned = std::make_integer_sequence<int, kWidth>;
    Vec<double> before = {};
    int64_t i = 0;
    for (; sizeof(T) == 4 && i + kWidth <= count; i += kWidth) {
        const int64_t first = step > 0 ? i : -i - (kWidth - 1);
        __builtin_prefetch(from + first + step * kAhead);
        __builtin_prefetch(to + first + step * kAhead);
        Vec<double> v = load_wide(from + first);
        v = sums_of_lanes(step > 0 ? v : reversed(v, Turned{}));
        // The sum so far waits for one addition alone.
        const Vec<double> last = splat(v[kWidth - 1]);
        v = (v + before) * scale + shift;
        before += last;
        store_narrow(to + first, step > 0 ? v : reversed(v, Turned{}));
    }
    double sum = before[0];
    for (; i < count; ++i) to[i * step] = static_cast<T>((sum += double(from[i * step])) * scale + shift);
    return sum;
}

// Two pieces of a block, taken out at once.
struct Two {
    uint64_t first, second;
    ANYMAX_INLINE explicit Two(const int32_t* pieces) {
        uint64_t both;
        std::memcpy(&both, pieces, sizeof both);
        first = uint32_t(both);
        second = both >> 32;
    }
};

ANYMAX_INLINE void copy_pairs(double* to, const double* first, const double* second) {
    std::memcpy(to, first, sizeof(Pair));
    std::memcpy(to + 2, second, sizeof(Pair));
}
// A pair of floats travels as one double, and two of them are stored together: stores are what a lookup waits for.
ANYMAX_INLINE void copy_pairs(float* to, const float* first, const float* second) {
    double a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    const Pair both = {a, b};
    std::memcpy(to, &both, sizeof both);
}

ANYMAX_INLINE void copy_two(double* to, const double* first, const double* second) {
    to[0] = *first;
    to[1] = *second;
}
ANYMAX_INLINE void copy_two(float* to, const float* first, const float* second) {
    uint32_t a, b;
    std::memcpy(&a, first, sizeof a);
    std::memcpy(&b, second, sizeof b);
    const uint64_t both = uint64_t(b) << 32 | a;
    std::memcpy(to, &both, sizeof both);
}

// Keeps the compiler from building vectors lane by lane out of what is stored before.
ANYMAX_INLINE void store_before_loading() { __asm__ volatile("" ::: "memory"); }

// f of blocks of scores.
template <class T> struct Value {
    Grid grid;
    const T* knots;
    double first, last;  // slopes of the ends

    void operator()(const T* scores, T* out) const {
        if (largest_magnitude(scores) <= grid.bound) of_block<true>(scores, out);
        else of_block<false>(scores, out);
    }

  private:
    template <bool kInside> ANYMAX_INLINE void of_block(const T* scores, T* out) const {
        alignas(64) int32_t piece[kBlock];
        alignas(64) double share[kBlock];
        alignas(64) T pairs[2 * kBlock];
        for (int i = 0; i < kBlock; i += kWidth) {
            const Place place = locate<kInside>(grid, load_wide(scores + i));
            std::memcpy(piece + i, &place.piece, sizeof place.piece);
            store(share + i, place.share);
        }
        prefetch_block(scores);
        prefetch_block(out);
#pragma GCC unroll 16
        for (int i = 0; i < kBlock; i += 2) {
            const Two at(piece + i);
            copy_pairs(pairs + 2 * i, knots + at.first, knots + at.second);
        }
        store_before_loading();
        for (int i = 0; i < kBlock; i += kWidth) {
            const Vec<double> left = one_of_pairs<0>(pairs + 2 * i), right = one_of_pairs<1>(pairs + 2 * i);
            Vec<double> y = left + (right - left) * load(share + i);
            if constexpr (!kInside) {
                const Vec<double> beyond = locate<kInside>(grid, load_wide(scores + i)).beyond;
                y += beyond * (beyond > 0 ? splat(last) : splat(first));
            }
            store_narrow(out + i, y);
        }
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
    running_sums<T, 1>(slopes, knots + 1, pieces, grid.delta, -bound);
    prefer_large_pages(out, count);
    const Value<T> value = {grid, knots, double(slopes[0]), double(slopes[pieces - 1])};
    const Parts parts(count, kEntriesPerThread, threads);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        int64_t i = parts.from(part);
        const int64_t to = parts.to(part);
        for (; i + kBlock <= to; i += kBlock) value(scores + i, out + i);
        if (i < to) {
            T block[kBlock] = {};
            std::copy(scores + i, scores + to, block);
            value(block, block);
            std::copy(block, block + (to - i), out + i);
        }
    }
    return 0;
}

// The sums of one thread: D at the knots that its scores can reach, from `first` up to `end`, and the gradient times what is
// beyond either end. Scores mostly lie in the middle, so the rest of a large table is neither cleared nor read.
struct Sums {
    double* knots;
    double reach;  // the largest magnitude so far, within the bound
    int64_t first, end;
    Vec<double> below, above;
    Sums(const Grid& grid, double* knots)
        : knots(knots), reach(-1), first(grid.piece(0) + 1), end(first), below(), above() {}
    void extend(const Grid& grid, double magnitude) {
        if (magnitude <= reach) return;
        reach = magnitude <= grid.bound ? magnitude : grid.bound;
        const int64_t new_first = grid.piece(-reach), new_end = grid.piece(reach) + 2;
        std::fill(knots + new_first, knots + first, 0.0);
        std::fill(knots + end, knots + new_end, 0.0);
        first = new_first;
        end = new_end;
    }
    ANYMAX_INLINE void add_beyond(Vec<double> grad, Vec<double> beyond) {
        // An infinite score whose result is not used is ignored.
        const Vec<double> ends = grad != 0 ? grad * beyond : Vec<double>{};
        above += beyond > 0 ? ends : Vec<double>{};
        below += beyond > 0 ? Vec<double>{} : ends;
    }
    void add(const Grid& grid, const Sums& other) {
        extend(grid, other.reach);
        for (int64_t j = other.first; j < other.end; ++j) knots[j] += other.knots[j];
        below += other.below;
        above += other.above;
    }
};

ANYMAX_INLINE void add_pair(double* to, const double* from) {
    Pair sum, pair;
    std::memcpy(&sum, to, sizeof sum);
    std::memcpy(&pair, from, sizeof pair);
    sum += pair;
    std::memcpy(to, &sum, sizeof sum);
}

// The gradient by a block of scores, added to the sums for that by slopes.
template <class T, bool kBySlopes, bool kInside>
ANYMAX_INLINE void backward_block(const Grid& grid, const T* grad, const T* scores, const T* slopes, T* by_scores, Sums& sums) {
    alignas(64) int32_t piece[kBlock];
    alignas(64) double pairs[kBySlopes ? 2 * kBlock : 1];
    alignas(64) T slope[kBlock];
    double* const knots = sums.knots;
    for (int i = 0; i < kBlock; i += kWidth) {
        const Place place = locate<kInside>(grid, load_wide(scores + i));
        std::memcpy(piece + i, &place.piece, sizeof place.piece);
        if constexpr (kBySlopes) {
            const Vec<double> g = load_wide(grad + i), right = g * place.share;
            store_pairs(pairs + 2 * i, g - right, right);
            if constexpr (!kInside) sums.add_beyond(g, place.beyond);
        }
    }
    prefetch_block(scores);
    prefetch_block(grad);
    prefetch_block(by_scores);
#pragma GCC unroll 16
    for (int i = 0; i < kBlock; i += 2) {
        const Two at(piece + i);
        if constexpr (kBySlopes) {
            add_pair(knots + at.first, pairs + 2 * i);
            add_pair(knots + at.second, pairs + 2 * i + 2);
        }
        copy_two(slope + i, slopes + at.first, slopes + at.second);
    }
    store_before_loading();
    for (int i = 0; i < kBlock; i += kLanes<T>) store(by_scores + i, load(grad + i) * load(slope + i));
}

template <class T, bool kBySlopes>
void backward_block(const Grid& grid, const T* grad, const T* scores, const T* slopes, T* by_scores, Sums& sums) {
    const double magnitude = largest_magnitude(scores);
    if constexpr (kBySlopes) sums.extend(grid, magnitude);
    if (magnitude <= grid.bound) backward_block<T, kBySlopes, true>(grid, grad, scores, slopes, by_scores, sums);
    else backward_block<T, kBySlopes, false>(grid, grad, scores, slopes, by_scores, sums);
}

template <class T, bool kBySlopes>
Sums backward_part(const Grid& grid, const T* grad, const T* scores, const T* slopes, T* by_scores, int64_t from, int64_t to,
                   double* knots) {
    Sums sums(grid, knots);
    int64_t i = from;
    for (; i + kBlock <= to; i += kBlock)
        backward_block<T, kBySlopes>(grid, grad + i, scores + i, slopes, by_scores + i, sums);
    if (i < to) {
        T grad_block[kBlock] = {}, block[kBlock] = {};
        std::copy(grad + i, grad + to, grad_block);
        std::copy(scores + i, scores + to, block);
        backward_block<T, kBySlopes>(grid, grad_block, block, slopes, block, sums);
        std::copy(block, block + (to - i), by_scores + i);
    }
    return sums;
}

// The gradient by slopes from the sums of all entries.
template <class T> void sum_by_slopes(const Grid& grid, const Sums& sums, T* by_slopes) {
    const int64_t first = std::max<int64_t>(sums.first, 1), last = sums.end - 1;
    std::fill(by_slopes + last, by_slopes + grid.pieces, T(0));
    const double* top_sum = sums.knots + last;
    const double total = running_sums<T, -1>(top_sum, by_slopes + last - 1, last - first + 1, grid.delta, 0.0) * grid.delta;
    std::fill(by_slopes, by_slopes + first - 1, static_cast<T>(total));
    const double below = sum<double>(sums.below), above = sum<double>(sums.above);
    const double top = last == grid.pieces ? *top_sum * grid.delta : 0;
    if (grid.pieces > 1) by_slopes[grid.pieces - 1] = static_cast<T>(top + above);
    by_slopes[0] = static_cast<T>(total + below + (grid.pieces > 1 ? 0 : above));
}

template <class T>
int64_t backward(const T* grad, const T* scores, const T* slopes, T* by_scores, T* by_slopes, int64_t count, int64_t pieces,
                 double bound, int threads) {
    const Grid grid(pieces, bound);
    if (!grid.is_sound()) return kUnsoundGrid;
    // A thread's table may have to be cleared and added up, which pays once there are as many entries as knots.
    const Parts parts(count, by_slopes ? std::max(kEntriesPerThread, pieces) : kEntriesPerThread, threads);
    const int64_t stride = pieces + 16;
    const Buffer<double> tables = allocate<double>(by_slopes ? parts.number * stride : 1);
    const Buffer<Sums> sums = allocate<Sums>(parts.number);
    if (!tables || !sums) return kOutOfMemory;
    prefer_large_pages(by_scores, count);
    prefer_large_pages(tables.get(), by_slopes ? parts.number * stride : 0);
#pragma omp parallel for schedule(static, 1) num_threads(parts.number) if (parts.number > 1)
    for (int64_t part = 0; part < parts.number; ++part) {
        const auto of_part = by_slopes ? backward_part<T, true> : backward_part<T, false>;
        double* knots = by_slopes ? tables.get() + part * stride : nullptr;
        sums[part] = of_part(grid, grad, scores, slopes, by_scores, parts.from(part), parts.to(part), knots);
    }
    if (!by_slopes) return 0;
    for (int64_t part = 1; part < parts.number; ++part) sums[0].add(grid, sums[part]);
    sum_by_slopes(grid, sums[0], by_slopes);
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
