// Entmax of rows, its gradient, and the gradient of alpha: the C interface, and the derivation all files here share.
//
// With a = alpha - 1 and scores z shifted so that their maximum is 0, the answer is
//
//     p_i = [1 + a (z_i - lambda)]_+ ^ (1/a)  =  [a (z_i - theta)]_+ ^ (1/a),      theta = lambda - 1/a,
//
// for the one lambda >= 0 (theta >= -1/a) at which the p_i sum to one. Only entries above max - 1/a can be chosen: they are
// packed together once, and the search for theta works on those few.
//
// For alpha <= 2, S(theta)^a is the (1/a)-norm of a positive part: convex, falling, and close to a straight line. Newton's
// method on it from the left end never oversteps, is exact in one step for alpha = 1 (where S^a turns into log S) and for
// equal scores, and is Michelot's method for alpha = 2. With D1 = sum p/b and D2 = sum p/b^2, where b = p^a, the step is
//
//     newton = (S / D1) gain,    gain = (1 - S^-a) / a,
//     halley = newton / (1 - bend),    bend = (1 - a) gain (S D2 / D1^2 - 1) / 2.
//
// We go on from the Halley point (up to alpha = 1.5, where D2 is bounded) and drop what lies below the Newton point, which is
// a proven lower bound of theta.
//
// For alpha < 1, a is negative and every entry has a probability. S^a is concave and rising, so the same step from the left
// never oversteps either, and from the right it lands on the left. It starts where as many entries at their mean, or at those
// of a few parts of the row, would sum to one.
//
// For alpha > 2 the terms are steep at the edge of the support, and the unknown is the smallest probability above zero:
// steep_row in long_rows.h.

#include <algorithm>

#include "entmax/gradient.h"
#include "entmax/short_rows.h"
#include "entmax/support.h"
#include "half.h"
#include "rows.h"

namespace anymax {
namespace {

constexpr int64_t kOutOfMemory = -1;

// The first alpha that is not finite, below 0, or 0 where the conjugate is asked for, which is infinite there; counted from 1,
// and 0 if there is none.
template <class T> int64_t bad_alpha(const T* alpha, int64_t count, bool wants_conjugate) {
    for (int64_t i = 0; i < count; ++i)
        if (!(alpha[i] >= 0 && (alpha[i] > 0 || !wants_conjugate) && alpha[i] < kInfinity<T>)) return i + 1;
    return 0;
}

// `probs` may be the scores themselves. Rows of half precision are computed in scratch space.
template <class S>
int64_t forward(const S* scores, const Wide<S>* alpha, int64_t num_alphas, S* probs, Wide<S>* conjugates, int64_t rows,
                int64_t n, int threads) {
    using T = Wide<S>;
    if (const int64_t bad = bad_alpha(alpha, num_alphas, conjugates != nullptr)) return bad;
    if (rows == 0) return 0;
    prefer_large_pages(probs, rows * n);
    const bool is_short = n <= kShortRow<T>;
    const int64_t part = rows_per_part(rows, is_short ? 2 * kLanes<T> : 1), together = is_short ? part : 1;
    const int64_t search_size = is_short ? short_rows_scratch<T>(n) : n + 2 * kLanes<T>;
    const int64_t scratch_size = search_size + (kIsHalf<S> ? together * n : 0);
    const bool done = for_parts_of_rows<T>(rows, n, part, threads, scratch_size, [=](int64_t first, int64_t last, T* scratch) {
        T* const wide = scratch + search_size;
        for (int64_t from = first; from < last; from += together) {
            const int64_t to = std::min(last, from + together), at = from * n, count = (to - from) * n;
            const T* x;
            T* out;
            if constexpr (kIsHalf<S>) {
                widen(scores + at, wide, count);
                x = out = wide;
            } else {
                x = scores + at;
                out = probs + at;
            }
            const auto row_at = [=](int64_t row) {
                const double row_alpha = double(alpha[num_alphas == 1 ? 0 : row]);
                return Member<T>{x + (row - from) * n, out + (row - from) * n, conjugates ? conjugates + row : nullptr, row_alpha};
            };
            if (is_short) {
                short_rows<T>(from, to, n, row_at, scratch);
            } else {
                const Member<T> m = row_at(from);
                long_row(m.x, m.alpha, m.out, m.conjugate, n, scratch);
            }
            if constexpr (kIsHalf<S>) narrow(wide, probs + at, count);
        }
    });
    return done ? 0 : kOutOfMemory;
}

template <class S>
int64_t backward(const S* grad, const S* probs, const Wide<S>* alpha, int64_t num_alphas, S* grad_scores, Wide<S>* grad_alpha,
                 int64_t rows, int64_t n, int threads) {
    using T = Wide<S>;
    if (rows == 0) return 0;
    prefer_large_pages(grad_scores, rows * n);
    const int64_t wide_size = kIsHalf<S> ? 3 * n : 0, part = rows_per_part(rows, 1);
    const bool done =
        for_parts_of_rows<T>(rows, n, part, threads, wide_size + gradient_scratch(n), [=](int64_t first, int64_t last, T* wide) {
            T* const scratch = wide + wide_size;
            for (int64_t row = first; row < last; ++row) {
                const int64_t at = row * n;
                const double a = double(alpha[num_alphas == 1 ? 0 : row]) - 1;
                T* by_alpha = grad_alpha ? grad_alpha + row : nullptr;
                if constexpr (kIsHalf<S>) {
                    widen(grad + at, wide, n);
                    widen(probs + at, wide + n, n);
                    backward_row(wide, wide + n, a, wide + 2 * n, by_alpha, n, scratch);
                    narrow(wide + 2 * n, grad_scores + at, n);
                } else {
                    backward_row(grad + at, probs + at, a, grad_scores + at, by_alpha, n, scratch);
                }
            }
        });
    return done ? 0 : kOutOfMemory;
}

constexpr int64_t kListed = 0, kDense = -2;

template <class T> int64_t support_of(const SupportJob<T>& job, int threads) {
    if (const int64_t bad = bad_alpha(job.alpha, job.num_alphas, true)) return bad;
    bool enough_memory = true;
    const bool is_listed = support(job, threads, enough_memory);
    return !enough_memory ? kOutOfMemory : is_listed ? kListed : kDense;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_ENTMAX(S, NAME)                                                                                              \
    ANYMAX_EXPORT int64_t anymax_entmax_forward_##NAME(const S* scores, const anymax::Wide<S>* alpha, int64_t num_alphas,   \
                                                       S* probs, anymax::Wide<S>* conjugates, int64_t rows, int64_t n,      \
                                                       int threads) {                                                       \
        return anymax::forward(scores, alpha, num_alphas, probs, conjugates, rows, n, threads);                             \
    }                                                                                                                       \
    ANYMAX_EXPORT int64_t anymax_entmax_backward_##NAME(const S* grad, const S* probs, const anymax::Wide<S>* alpha,        \
                                                        int64_t num_alphas, S* grad_scores, anymax::Wide<S>* grad_alpha,    \
                                                        int64_t rows, int64_t n, int threads) {                             \
        return anymax::backward(grad, probs, alpha, num_alphas, grad_scores, grad_alpha, rows, n, threads);                 \
    }

#define ANYMAX_ENTMAX_LISTS(T, NAME)                                                                                        \
    ANYMAX_EXPORT int64_t anymax_entmax_support_##NAME(T* scores, int64_t stride, const T* alpha, int64_t num_alphas,       \
                                                       T* tops, T* conjugates, T* by_alpha, int64_t* counts,                \
                                                       int64_t capacity, int64_t rows, int64_t n, int threads) {            \
        return anymax::support_of<T>(                                                                                       \
            {scores, stride, alpha, num_alphas, tops, conjugates, by_alpha, counts, capacity, rows, n}, threads);           \
    }

// Named for what the weight is stored as.
#define ANYMAX_ENTMAX_PRODUCTS(S, NAME)                                                                                     \
    ANYMAX_EXPORT int64_t anymax_entmax_products_##NAME(                                                                    \
        const anymax::Wide<S>* block, int64_t stride, const int64_t* counts, const int64_t* target, double peak,            \
        const anymax::Wide<S>* coefficient, const S* weight, const anymax::Wide<S>* hidden, anymax::Wide<S>* grad_hidden,   \
        anymax::Wide<S>* grad_weight, anymax::Wide<S>* grad_bias, int64_t rows, int64_t n, int64_t dim, int threads) {      \
        using T = anymax::Wide<S>;                                                                                          \
        anymax::multiply_lists<S, T>({block, stride, counts, target, T(peak), coefficient, weight, hidden, grad_hidden,     \
                                      grad_weight, grad_bias, rows, n, dim},                                                \
                                     threads);                                                                              \
        return 0;                                                                                                           \
    }

ANYMAX_ENTMAX(float, float32)
ANYMAX_ENTMAX(double, float64)
ANYMAX_ENTMAX(anymax::Float16, float16)
ANYMAX_ENTMAX(anymax::BFloat16, bfloat16)
ANYMAX_ENTMAX_LISTS(float, float32)
ANYMAX_ENTMAX_LISTS(double, float64)
ANYMAX_ENTMAX_PRODUCTS(float, float32)
ANYMAX_ENTMAX_PRODUCTS(double, float64)
ANYMAX_ENTMAX_PRODUCTS(anymax::Float16, float16)
ANYMAX_ENTMAX_PRODUCTS(anymax::BFloat16, bfloat16)
