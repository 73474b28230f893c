// Entmax of rows, its gradient, and the gradient of alpha.
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
// We go on from the Halley point and drop what lies below the Newton point, which is a proven lower bound of theta.
//
// For alpha > 2 the terms are steep at the edge of the support. There the unknown is the largest probability w in [1/n, 1],
// p_i = [w^a + a z_i]_+ ^ (1/a), found by Newton's method inside a bracket, in double precision.

#include "rows.h"
#include "vector.h"

namespace anymax {
namespace {

template <class T> struct Terms {
    Vec<T> prob, slope, bend;  // p, p / b, p / b^2
};

struct Sums {
    double prob, slope, bend;
};

// A number as the sum of two of type T, so that z - number is as exact as z is.
template <class T> struct Split {
    Vec<T> high, low;
    void set(double value) {
        const T first = static_cast<T>(value);
        high = splat(first);
        low = splat(static_cast<T>(value - first));
    }
    ANYMAX_INLINE Vec<T> below(Vec<T> z) const { return (z - high) - low; }
};

// The four ways to take the power 1/a. Each knows where its search starts, how to turn z into terms, and gain(S).

template <class T> struct Linear {  // alpha = 2
    static constexpr double a = 1;
    Split<T> theta;
    double start() const { return -1; }
    double threshold(double at) const { return at; }
    double gain(double s) const { return 1 - 1 / s; }
    // The sum has a kink wherever an entry leaves, so only a settled support ends the search.
    static constexpr double tolerance = 0;
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        const Vec<T> b = theta.below(z);
        return b > 0 ? b : Vec<T>{};
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z) const {
        const Vec<T> p = prob(z);
        return {p, p > 0 ? splat<T>(1) : Vec<T>{}, Vec<T>{}};
    }
};

template <class T> struct Square {  // alpha = 1.5
    static constexpr double a = 0.5;
    Split<T> theta;
    double start() const { return -2; }
    double threshold(double at) const { return at; }
    double gain(double s) const { return 2 - 2 / std::sqrt(s); }
    static constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-9;
    ANYMAX_INLINE Vec<T> base(Vec<T> z) const {
        const Vec<T> b = theta.below(z) * T(0.5);
        return b > 0 ? b : Vec<T>{};
    }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        const Vec<T> b = base(z);
        return b * b;
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z) const {
        const Vec<T> b = base(z);
        return {b * b, b, b > 0 ? splat<T>(1) : Vec<T>{}};
    }
};

// (1 - s^-a) / a without cancellation near s = 1.
inline double general_gain(double a, double s) {
    const double e = s - 1;
    if (std::fabs(e) < 1e-3) return e * (1 - (1 + a) / 2 * e * (1 - (2 + a) / 3 * e));
    return -std::expm1(-a * std::log(s)) / a;
}

template <class T> struct Root {  // 1.1 <= alpha < 2, exact where b is near zero
    double a;
    Split<T> theta;
    double start() const { return -1 / a; }
    double threshold(double at) const { return at; }
    double gain(double s) const { return general_gain(a, s); }
    double tolerance;
    explicit Root(double a) : a(a), tolerance(sizeof(T) == 8 ? 1e-9 : a < 0.4 ? 1e-3 : a < 0.6 ? 1e-5 : 3e-7) {}
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        const Vec<T> b = theta.below(z) * T(a);
        const Mask<T> chosen = b > 0;
        const Vec<T> p = exponential(logarithm(chosen ? b : splat<T>(1)) * T(1 / a));
        return chosen ? p : Vec<T>{};
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z) const {
        const Vec<T> b = theta.below(z) * T(a);
        const Mask<T> chosen = b > 0;
        const Vec<T> safe = chosen ? b : splat<T>(1);
        const Vec<T> power = exponential(logarithm(safe) * T(1 / a));
        const Vec<T> p = chosen ? power : Vec<T>{};
        const Vec<T> inverse = 1 / safe;
        return {p, p * inverse, p * inverse * inverse};
    }
};

template <class T> struct NearExponential {  // 1 < alpha < 1.1, exact where b is near one
    double a;
    Split<T> lambda;
    double start() const { return 0; }
    double threshold(double at) const { return at - 1 / a; }
    double gain(double s) const { return general_gain(a, s); }
    static constexpr double tolerance = sizeof(T) == 4 ? 1e-3 : 1e-9;
    explicit NearExponential(double a) : a(a) {}
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const { return terms(z).prob; }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z) const {
        const Vec<T> t = lambda.below(z) * T(a);
        const Mask<T> chosen = t > -1;
        const Vec<T> safe = chosen ? t : Vec<T>{};
        const Vec<T> power = exponential(logarithm_of_one_plus(safe) * T(1 / a));
        const Vec<T> p = chosen ? power : Vec<T>{};
        const Vec<T> inverse = 1 / (1 + safe);
        return {p, p * inverse, p * inverse * inverse};
    }
};

template <class T> void place(Linear<T>& power, double at) { power.theta.set(at); }
template <class T> void place(Square<T>& power, double at) { power.theta.set(at); }
template <class T> void place(Root<T>& power, double at) { power.theta.set(at); }
template <class T> void place(NearExponential<T>& power, double at) { power.lambda.set(at); }

// Packed scores end in a vector of minus infinity, which no power chooses.
template <class T> void pad(T* z, int64_t count) { store(z + count, splat(-kInfinity<T>)); }

template <class T> int64_t keep_above(T* z, int64_t count, T threshold) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += kLanes<T>) {
        const Vec<T> v = load(z + i);
        kept += pack<T>(z + kept, v, v > threshold);
    }
    pad(z, kept);
    return kept;
}

template <class T, class Power> Sums evaluate(const Power& power, const T* z, int64_t count) {
    LongSum<T> prob, slope, bend;
    const int64_t block = kCarryEvery * kLanes<T>;
    for (int64_t from = 0; from < count; from += block) {
        const int64_t to = std::min(count, from + block);
        for (int64_t i = from; i < to; i += kLanes<T>) {
            const Terms<T> terms = power.terms(load(z + i));
            prob.add(terms.prob);
            slope.add(terms.slope);
            bend.add(terms.bend);
        }
        prob.carry();
        slope.carry();
        bend.carry();
    }
    return {prob.total, slope.total, bend.total};
}

// Finds where the packed scores z sum to one, leaves `power` there, and returns theta or lambda.
template <class T, class Power> double solve(Power& power, T* z, int64_t count) {
    double at = power.start();
    for (int step = 0; step < 100; ++step) {
        place(power, at);
        const Sums s = evaluate(power, z, count);
        const double gain = power.gain(s.prob);
        const double newton = s.prob / s.slope * gain;
        const double bend = (1 - power.a) * gain * (s.prob * s.bend / (s.slope * s.slope) - 1) / 2;
        const double lower_bound = at + newton;
        at += newton / (1 - std::min(bend, 0.5));
        if (std::fabs(s.prob - 1) <= power.tolerance) break;
        const int64_t kept = keep_above(z, count, static_cast<T>(power.threshold(lower_bound)));
        // With alpha = 2 an unchanged support makes the step exact.
        if (power.a == 1 && kept == count) break;
        count = kept;
    }
    place(power, at);
    return at;
}

struct Row {
    double maximum;
    bool has_nan;
};

template <class T> Row scan(const T* x, int64_t n) {
    Vec<T> best = splat(-kInfinity<T>);
    Mask<T> nan = {};
    int64_t i = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) {
        const Vec<T> v = load(x + i);
        best = v > best ? v : best;
        nan |= v != v;
    }
    if (i < n) {
        const Vec<T> v = load_part(x + i, n - i, -kInfinity<T>);
        best = v > best ? v : best;
        nan |= v != v;
    }
    return {maximum<T>(best), any<T>(nan)};
}

// Packs x - top for every x that may be chosen; returns how many.
template <class T> int64_t gather_candidates(const T* x, int64_t n, T top, T reach, T* z) {
    const T lowest = top - reach;
    int64_t count = 0, i = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) {
        const Vec<T> v = load(x + i);
        const Mask<T> near = v >= lowest;
        if (any<T>(near)) count += pack<T>(z + count, v - top, near);
    }
    if (i < n) {
        const Vec<T> v = load_part(x + i, n - i, -kInfinity<T>);
        count += pack<T>(z + count, v - top, v >= lowest);
    }
    pad(z, count);
    return count;
}

// Calls write(i, count, v) for every vector of the row that has an entry above `threshold`, and clears the others.
template <class T, class Write> ANYMAX_INLINE void write_row(const T* x, T* out, int64_t n, T top, T threshold, const Write& write) {
    int64_t i = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) {
        const Vec<T> z = load(x + i) - top;
        if (any<T>(z > threshold)) store(out + i, write(z));
        else store(out + i, Vec<T>{});
    }
    if (i < n) store_part(out + i, write(load_part(x + i, n - i, -kInfinity<T>) - top), n - i);
}

// What the conjugate needs of a row: sum p z, and lambda.
struct Solution {
    double expected, lambda;
};

template <class T, class Power>
Solution finish(Power power, double a, const T* x, T* out, int64_t n, T top, T* scratch, bool wants_conjugate) {
    const int64_t count = gather_candidates(x, n, top, static_cast<T>(1 / a), scratch);
    const double at = solve(power, scratch, count);
    const T threshold = static_cast<T>(power.threshold(at));
    Solution solution = {0, at - power.start()};
    if (!wants_conjugate) {
        write_row(x, out, n, top, threshold, [&](Vec<T> z) { return power.prob(z); });
        return solution;
    }
    double expected = 0;
    write_row(x, out, n, top, threshold, [&](Vec<T> z) {
        const Vec<T> p = power.prob(z);
        expected += sum<T>(p > 0 ? p * z : Vec<T>{});
        return p;
    });
    solution.expected = expected;
    return solution;
}

template <class T> Solution softmax_row(const T* x, T* out, int64_t n, T top) {
    LongSum<T> total;
    double expected = 0;
    int64_t i = 0, vectors = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) {
        const Vec<T> p = exponential(load(x + i) - top);
        store(out + i, p);
        total.add(p);
        if (++vectors % kCarryEvery == 0) total.carry();
    }
    if (i < n) {
        const Vec<T> p = exponential(load_part(x + i, n - i, -kInfinity<T>) - top);
        store_part(out + i, p, n - i);
        total.add(p);
    }
    total.carry();
    const T scale = static_cast<T>(1 / total.total);
    for (i = 0; i < n; ++i) out[i] *= scale;
    // At alpha = 1 the expected score has no weight in the conjugate.
    return {expected, std::log(total.total)};
}

// alpha > 2.
template <class T> Solution steep_row(const T* x, T* out, int64_t n, T top, double a, T* scratch) {
    const int64_t count = gather_candidates(x, n, top, static_cast<T>(1 / a), scratch);
    const auto prob = [a](double z, double w, double wa) {
        // w^a may be too small for a double where w is not.
        if (z == 0) return w;
        const double b = wa + a * z;
        return b > 0 ? std::pow(b, 1 / a) : 0.0;
    };
    double low = 1.0 / static_cast<double>(n), high = 1, w = low, sum = 0;
    for (int step = 0; step < 200; ++step) {
        const double wa = std::pow(w, a);
        double slope = 0;
        sum = 0;
        for (int64_t i = 0; i < count; ++i) {
            const double p = prob(scratch[i], w, wa);
            sum += p;
            if (p > 0) slope += std::pow(w / p, a - 1);
        }
        (sum < 1 ? low : high) = w;
        if (sum == 1 || high - low <= 1e-16 * high) break;
        const double newton = w + (1 - sum) / slope;
        const double next = newton > low && newton < high ? newton : (low + high) / 2;
        // Newton's steps shrink the bracket from one side only; every third step halves it.
        w = step % 3 == 2 ? (low + high) / 2 : next;
    }
    const double wa = std::pow(w, a);
    double expected = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double z = static_cast<double>(x[i]) - top;
        const double p = prob(z, w, wa) / sum;
        if (p > 0) expected += p * z;
        out[i] = static_cast<T>(p);
    }
    return {expected, (1 - wa) / a};
}

template <class T> void forward_row(const T* x, double alpha, T* out, T* conjugate, int64_t n, T* scratch) {
    const Row row = scan(x, n);
    const T top = static_cast<T>(row.maximum);
    if (row.has_nan || row.maximum == kInfinity<double> || row.maximum == -kInfinity<double>) {
        // Nothing to choose from gives zeros; a NaN or +inf leaves nothing to say.
        const bool empty = !row.has_nan && row.maximum == -kInfinity<double>;
        const T fill = empty ? T(0) : std::numeric_limits<T>::quiet_NaN();
        std::fill(out, out + n, fill);
        if (conjugate) *conjugate = fill;
        return;
    }
    const double a = alpha - 1;
    const bool wants_conjugate = conjugate != nullptr;
    Solution solution;
    if (a == 0) solution = softmax_row(x, out, n, top);
    else if (a == 1) solution = finish(Linear<T>{}, a, x, out, n, top, scratch, wants_conjugate);
    else if (a == 0.5) solution = finish(Square<T>{}, a, x, out, n, top, scratch, wants_conjugate);
    else if (a > 1) solution = steep_row(x, out, n, top, a, scratch);
    else if (a < 0.1) solution = finish(NearExponential<T>(a), a, x, out, n, top, scratch, wants_conjugate);
    else solution = finish(Root<T>(a), a, x, out, n, top, scratch, wants_conjugate);
    if (conjugate) *conjugate = static_cast<T>((a * solution.expected + solution.lambda) / alpha);
}

// s = p^(1-a) on the support: the diagonal of the Jacobian before its rank-one correction.
template <class T> ANYMAX_INLINE Vec<T> weight(Vec<T> p, Vec<T> log_p, double a) {
    const Mask<T> chosen = p > 0;
    Vec<T> s;
    if (a == 0) s = p;
    else if (a == 1) s = splat<T>(1);
    else if (a == 0.5) s = square_root(p);
    else s = exponential(log_p * T(1 - a));
    return chosen ? s : Vec<T>{};
}

template <class T> ANYMAX_INLINE Vec<T> safe_logarithm(Vec<T> p) {
    const T smallest = std::numeric_limits<T>::min();
    return logarithm(p > smallest ? p : splat(smallest));
}

// c = p log(p)^2 psi(a log p) with psi(t) = (1 - exp(-t) - t) / t^2: the derivative of p by alpha at fixed lambda.
template <class T> ANYMAX_INLINE Vec<T> alpha_slope(Vec<T> p, Vec<T> s, Vec<T> log_p, double a) {
    const Vec<T> t = log_p * T(a);
    // -sum over k of (-t)^k / (k + 2)!, enough terms for |t| <= 1.
    constexpr int kTerms = sizeof(T) == 4 ? 9 : 17;
    Vec<T> series = splat<T>(1);
    for (int k = kTerms; k > 0; --k) series = 1 - series * t / T(k + 2);
    const Vec<T> near = p * log_p * log_p * series * T(-0.5);
    const Vec<T> far = (p * (1 - t) - s) * T(a == 0 ? 0 : 1 / (a * a));
    return p > 0 ? (t > -1 ? near : far) : Vec<T>{};
}

// One pass writes s where the gradient will stand and notes which vectors hold any; a second visits only those.
template <class T>
void backward_row(const T* grad, const T* p, double alpha, T* grad_scores, T* grad_alpha, int64_t n, int32_t* active) {
    const double a = alpha - 1;
    const bool needs_log = grad_alpha || !(a == 0 || a == 0.5 || a == 1);
    if (p[0] != p[0]) {
        std::fill(grad_scores, grad_scores + n, p[0]);
        if (grad_alpha) *grad_alpha = p[0];
        return;
    }
    double weights = 0, weighted = 0;
    int64_t num_active = 0;
    LongSum<T> weight_sum, weighted_sum;
    const int64_t whole = n / kLanes<T> * kLanes<T>;
    for (int64_t i = 0; i < n; i += kLanes<T>) {
        const int64_t count = std::min<int64_t>(kLanes<T>, n - i);
        const Vec<T> v = i < whole ? load(p + i) : load_part(p + i, count, T(0));
        if (!any<T>(v > 0)) {
            if (i < whole) store(grad_scores + i, Vec<T>{});
            else store_part(grad_scores + i, Vec<T>{}, count);
            continue;
        }
        const Vec<T> g = i < whole ? load(grad + i) : load_part(grad + i, count, T(0));
        const Vec<T> s = weight<T>(v, needs_log ? safe_logarithm<T>(v) : v, a);
        if (i < whole) store(grad_scores + i, s);
        else store_part(grad_scores + i, s, count);
        active[num_active++] = static_cast<int32_t>(i / kLanes<T>);
        weight_sum.add(s);
        weighted_sum.add(s > 0 ? s * g : Vec<T>{});
        if (num_active % kCarryEvery == 0) {
            weight_sum.carry();
            weighted_sum.carry();
        }
    }
    weight_sum.carry();
    weighted_sum.carry();
    weights = weight_sum.total;
    weighted = weighted_sum.total;
    const T mean = static_cast<T>(weights > 0 ? weighted / weights : 0);
    LongSum<T> by_alpha;
    for (int64_t k = 0; k < num_active; ++k) {
        const int64_t i = int64_t(active[k]) * kLanes<T>;
        const int64_t count = std::min<int64_t>(kLanes<T>, n - i);
        const Vec<T> g = i < whole ? load(grad + i) : load_part(grad + i, count, T(0));
        const Vec<T> s = i < whole ? load(grad_scores + i) : load_part(grad_scores + i, count, T(0));
        const Vec<T> centred = s > 0 ? g - mean : Vec<T>{};
        if (i < whole) store(grad_scores + i, s * centred);
        else store_part(grad_scores + i, s * centred, count);
        if (grad_alpha) {
            const Vec<T> v = i < whole ? load(p + i) : load_part(p + i, count, T(0));
            by_alpha.add(alpha_slope<T>(v, s, safe_logarithm<T>(v), a) * centred);
            by_alpha.carry();
        }
    }
    if (grad_alpha) *grad_alpha = static_cast<T>(by_alpha.total);
}

constexpr int64_t kOutOfMemory = -1;

// The first alpha that is not a finite number >= 1, counted from 1; 0 if there is none.
template <class T> int64_t bad_alpha(const T* alpha, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (!(alpha[i] >= 1 && alpha[i] < kInfinity<T>)) return i + 1;
    return 0;
}

template <class T>
int64_t forward(const T* scores, const T* alpha, int64_t num_alphas, T* probs, T* conjugates, int64_t rows, int64_t n, int threads) {
    if (const int64_t bad = bad_alpha(alpha, num_alphas)) return bad;
    const bool done = for_each_row<T>(rows, n, threads, n + 2 * kLanes<T>, [=](int64_t row, T* scratch) {
        T* conjugate = conjugates ? conjugates + row : nullptr;
        forward_row(scores + row * n, double(alpha[num_alphas == 1 ? 0 : row]), probs + row * n, conjugate, n, scratch);
    });
    return done ? 0 : kOutOfMemory;
}

template <class T>
int64_t backward(const T* grad, const T* probs, const T* alpha, int64_t num_alphas, T* grad_scores, T* grad_alpha, int64_t rows,
                 int64_t n, int threads) {
    const bool done = for_each_row<int32_t>(rows, n, threads, n / kLanes<T> + 1, [=](int64_t row, int32_t* active) {
        const int64_t at = row * n;
        T* by_alpha = grad_alpha ? grad_alpha + row : nullptr;
        const double row_alpha = double(alpha[num_alphas == 1 ? 0 : row]);
        backward_row(grad + at, probs + at, row_alpha, grad_scores + at, by_alpha, n, active);
    });
    return done ? 0 : kOutOfMemory;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_ENTMAX(T, NAME)                                                                                                   \
    ANYMAX_EXPORT int64_t anymax_entmax_forward_##NAME(const T* scores, const T* alpha, int64_t num_alphas, T* probs,           \
                                                       T* conjugates, int64_t rows, int64_t n, int threads) {                   \
        return anymax::forward(scores, alpha, num_alphas, probs, conjugates, rows, n, threads);                                  \
    }                                                                                                                            \
    ANYMAX_EXPORT int64_t anymax_entmax_backward_##NAME(const T* grad, const T* probs, const T* alpha, int64_t num_alphas,      \
                                                        T* grad_scores, T* grad_alpha, int64_t rows, int64_t n, int threads) {   \
        return anymax::backward(grad, probs, alpha, num_alphas, grad_scores, grad_alpha, rows, n, threads);                      \
    }

ANYMAX_ENTMAX(float, float32)
ANYMAX_ENTMAX(double, float64)
