// Entmax of a block of rows in place, as lists of what was chosen where that is little, and the products of such lists.
//
// A list stands in the row it comes from: `count` probabilities at its front, and as many indices (int32) at its back.

#pragma once

#include <atomic>

#include "entmax/gradient.h"
#include "entmax/long_rows.h"
#include "half.h"

namespace anymax {

template <class T> int32_t* indices_of(T* row, int64_t n, int64_t count) { return reinterpret_cast<int32_t*>(row + n) - count; }
template <class T> const int32_t* indices_of(const T* row, int64_t n, int64_t count) {
    return reinterpret_cast<const int32_t*>(row + n) - count;
}

template <class T> int64_t count_support(const T* p, int64_t n) {
    Mask<T> counts = {};
    int64_t i = 0, count = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) counts -= load(p + i) > 0;
    for (; i < n; ++i) count += p[i] > 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) count += counts[lane];
    return count;
}

// Turns a row of probabilities into its list; `scratch` has room for the row.
template <class T> void make_list(T* p, int64_t n, int64_t count, T* scratch) {
    T* probs = scratch;
    int32_t* indices = reinterpret_cast<int32_t*>(scratch + count);
    int64_t found = 0;
    for (int64_t i = 0; i < n && found < count; i += kLanes<T>) {
        for (unsigned left = bits<T>(load_up_to(p + i, n - i, T(0)) > 0); left != 0; left &= left - 1) {
            const int64_t j = i + __builtin_ctz(left);
            probs[found] = p[j];
            indices[found++] = static_cast<int32_t>(j);
        }
    }
    std::copy(probs, probs + count, p);
    std::copy(indices, indices + count, indices_of(p, n, count));
}

// The reverse of make_list.
template <class T> void unmake_list(T* row, int64_t n, int64_t count, T* scratch) {
    T* probs = scratch;
    int32_t* indices = reinterpret_cast<int32_t*>(scratch + count);
    std::copy(row, row + count, probs);
    std::copy_n(indices_of(row, n, count), count, indices);
    std::fill(row, row + n, T(0));
    for (int64_t i = 0; i < count; ++i) row[indices[i]] = probs[i];
}

// The derivative of Omega by alpha at fixed p, where alpha is not near 1: with S = sum of p^alpha - p and its derivative
// S' = sum of p^alpha log(p), it is S' / (alpha a) - S (2 alpha - 1) / (alpha a)^2.
template <class T> double omega_by_alpha_apart(const T* p, int64_t n, double alpha) {
    const double a = alpha - 1;
    CarriedSums<T, 2> totals;
    for (int64_t i = 0; i < n; i += kLanes<T>) {
        const Vec<T> v = load_up_to(p + i, n - i, T(0)), log_p = safe_logarithm<T>(v);
        const Mask<T> is_chosen = v > 0;
        const Vec<T> power = a == 0.5 ? v * square_root(v) : exponential(log_p * T(alpha));
        totals.add({is_chosen ? power * log_p : Vec<T>{}, is_chosen ? power - v : Vec<T>{}});
    }
    totals.carry();
    return totals.sums[0] / (alpha * a) - totals.sums[1] * (2 * alpha - 1) / (alpha * alpha * a * a);
}

// The same where it is near, and all differences are small: the sum over p of p log(p)^2 slope(t) with t = a log p and
// slope = (exp(t) (t - 1) + 1) / t^2, minus Omega, over alpha; Omega = sum of p log(p) expm1(t) / t, over alpha.
template <class T> double omega_by_alpha_near(const T* p, int64_t n, double alpha) {
    const double a = alpha - 1;
    CarriedSums<T, 2> totals;
    // Of the two series, and where they reach: |t| <= 1.
    constexpr int kTerms = sizeof(T) == 4 ? 10 : 18;
    for (int64_t i = 0; i < n; i += kLanes<T>) {
        const Vec<T> v = load_up_to(p + i, n - i, T(0));
        if (!any<T>(v > 0)) continue;
        const Vec<T> log_p = safe_logarithm<T>(v), t = log_p * T(a);
        // p^alpha, for p^a alone may be too large for a float.
        const Vec<T> power = exponential(log_p * T(alpha));
        const Mask<T> is_near = (t >= -1) & (t <= 1);
        const Vec<T> far = is_near ? splat<T>(1) : t;
        Vec<T> slope = splat<T>(1), growth = splat<T>(1);
        for (int k = kTerms; k > 0; --k) {
            slope = 1 + slope * t * (T(k + 1) / (T(k) * T(k + 2)));
            growth = 1 + growth * t * (T(1) / T(k + 1));
        }
        slope = is_near ? v * slope * T(0.5) : (power * (far - 1) + v) / (far * far);
        growth = is_near ? v * growth : (power - v) / far;
        const Vec<T> chosen_log = v > 0 ? log_p : Vec<T>{};
        totals.add({chosen_log * log_p * slope, chosen_log * growth});
    }
    totals.carry();
    return (totals.sums[0] - totals.sums[1] / alpha) / alpha;
}

template <class T> double omega_by_alpha(const T* p, int64_t n, double alpha) {
    // Apart, rounding is larger by 1 / a^2.
    return std::fabs(alpha - 1) < 0.3 ? omega_by_alpha_near(p, n, alpha) : omega_by_alpha_apart(p, n, alpha);
}

template <class T> struct SupportJob {
    T* scores;
    int64_t stride;
    const T* alpha;
    int64_t num_alphas;
    // Written for each row: its maximum, the conjugate of the row minus that, the derivative of Omega by alpha unless null,
    // and the length of its list.
    T* tops;
    T* conjugates;
    T* by_alpha;
    int64_t* counts;
    // How many entries may be listed in all; beyond, the rows stay probabilities.
    int64_t capacity;
    int64_t rows, n;
};

constexpr int64_t kNotListed = -1;

// Returns whether the rows are lists now; false leaves probabilities.
template <class T> bool support(const SupportJob<T>& job, int threads, bool& enough_memory) {
    std::atomic<int64_t> total{0};
    const int64_t n = job.n, part = rows_per_part(job.rows, 1);
    enough_memory = for_parts_of_rows<T>(job.rows, n, part, threads, n + 2 * kLanes<T>, [&](int64_t first, int64_t last, T* scratch) {
        for (int64_t row = first; row < last; ++row) {
            T* x = job.scores + row * job.stride;
            const double alpha = double(job.alpha[job.num_alphas == 1 ? 0 : row]);
            job.tops[row] = long_row(x, alpha, x, job.conjugates + row, n, scratch);
            // A row without an answer is NaN everywhere.
            const bool is_number = x[0] == x[0];
            if (job.by_alpha) job.by_alpha[row] = is_number ? static_cast<T>(omega_by_alpha(x, n, alpha)) : x[0];
            job.counts[row] = kNotListed;
            if (total.load() > job.capacity || job.capacity <= 0) continue;
            int64_t count = is_number ? count_support(x, n) : n;
            // A list takes two numbers for each entry. Too much for one row is too much for all.
            if (2 * count > n) count = job.capacity + 1;
            const bool fits = total.fetch_add(count) + count <= job.capacity;
            // Where a row has more than its share, the block is likely to stay as it is.
            if (!fits || count * job.rows > job.capacity) continue;
            make_list(x, n, count, scratch);
            job.counts[row] = count;
        }
    });
    const bool is_listed = job.capacity > 0 && total.load() <= job.capacity;
    if (!enough_memory) return is_listed;
    enough_memory = for_parts_of_rows<T>(job.rows, n, part, threads, n, [&](int64_t first, int64_t last, T* scratch) {
        for (int64_t row = first; row < last; ++row) {
            T* x = job.scores + row * job.stride;
            if (is_listed == (job.counts[row] != kNotListed)) continue;
            if (is_listed) make_list(x, n, job.counts[row] = count_support(x, n), scratch);
            else unmake_list(x, n, job.counts[row], scratch);
        }
    });
    return is_listed;
}

template <class S, class T> ANYMAX_INLINE void add_scaled(T* into, const S* from, T factor, int64_t n) {
    if constexpr (kIsHalf<S>) {
        constexpr int64_t kChunk = 64;
        T wide[kChunk];
        for (int64_t i = 0; i < n; i += kChunk) {
            const int64_t count = std::min(kChunk, n - i);
            widen(from + i, wide, count);
            add_scaled(into + i, wide, factor, count);
        }
    } else {
        for (int64_t i = 0; i < n; ++i) into[i] += factor * from[i];
    }
}

// The gradient of a row's loss by its scores: the listed probabilities, less `peak` at the target. The weight is stored as S.
template <class S, class T> struct ListedProducts {
    const T* block;
    int64_t stride;
    const int64_t* counts;
    const int64_t* target;
    T peak;
    const T* coefficient;
    const S* weight;
    const T* hidden;
    // Any of these may be null. The first is written, the others are added to.
    T* grad_hidden;
    T* grad_weight;
    T* grad_bias;
    int64_t rows, n, dim;

    // Calls visit(index, value) for the entries of a row, times its coefficient.
    template <class Visit> ANYMAX_INLINE void for_entries(int64_t row, const Visit& visit) const {
        const T* probs = block + row * stride;
        const int32_t* indices = indices_of(probs, n, counts[row]);
        bool is_chosen = false;
        for (int64_t i = 0; i < counts[row]; ++i) {
            // One term for the target, not two that cancel but for rounding.
            const bool is_target = indices[i] == target[row];
            is_chosen |= is_target;
            visit(int64_t(indices[i]), coefficient[row] * (is_target ? probs[i] - peak : probs[i]));
        }
        if (!is_chosen) visit(target[row], -coefficient[row] * peak);
    }
};

// With G the listed gradient, c its coefficients: grad_hidden = c G W,  grad_weight += G' c H,  grad_bias += G' c. A row of
// the weight belongs to one thread, and takes its terms in the order of the rows: the same sum for any number of threads.
template <class S, class T> void multiply_lists(const ListedProducts<S, T>& job, int threads) {
    const int64_t dim = job.dim;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        if (job.grad_hidden) {
#pragma omp for schedule(dynamic, 8) nowait
            for (int64_t row = 0; row < job.rows; ++row) {
                T* into = job.grad_hidden + row * dim;
                std::fill(into, into + dim, T(0));
                job.for_entries(row, [&](int64_t index, T value) { add_scaled(into, job.weight + index * dim, value, dim); });
            }
        }
#pragma omp for schedule(static, 1) nowait
        for (int owner = 0; owner < threads; ++owner) {
            if (!job.grad_weight && !job.grad_bias) continue;
            for (int64_t row = 0; row < job.rows; ++row) {
                const T* hidden = job.hidden + row * dim;
                job.for_entries(row, [&](int64_t index, T value) {
                    if (index % threads != owner) return;
                    if (job.grad_weight) add_scaled(job.grad_weight + index * dim, hidden, value, dim);
                    if (job.grad_bias) job.grad_bias[index] += value;
                });
            }
        }
    }
}

}  // namespace anymax
