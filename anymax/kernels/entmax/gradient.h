// The gradient of entmax by the scores, s (g - <s, g> / sum s) with s = p^(1-a) on the support, and by alpha.

#pragma once

#include "entmax/power.h"
#include "rows.h"

namespace anymax {

template <class T> ANYMAX_INLINE Vec<T> safe_logarithm(Vec<T> p) {
    return logarithm(at_least<T>(p, splat(std::numeric_limits<T>::min())));
}

// `log_p` is read by kLowRoot alone.
template <class T, Kind kind> ANYMAX_INLINE Vec<T> weight(Vec<T> p, [[maybe_unused]] Vec<T> log_p, T exponent) {
    Vec<T> s;
    if constexpr (kind == Kind::kSoftmax) return p;
    else if constexpr (kind == Kind::kLinear) s = splat<T>(1);
    else if constexpr (kind == Kind::kSquare) return square_root(p);
    else if constexpr (kind == Kind::kReciprocal) return p * p;
    else if constexpr (kind == Kind::kInverseSquare) return p * square_root(p);
    else s = exponential(log_p * exponent);
    return p > 0 ? s : Vec<T>{};
}

// c = p log(p)^2 psi(a log p) with psi(t) = (1 - exp(-t) - t) / t^2: the derivative of p by alpha at fixed lambda.
template <class T> ANYMAX_INLINE Vec<T> alpha_slope(Vec<T> p, Vec<T> log_p, Vec<T> s, double a) {
    const Vec<T> t = log_p * T(a);
    // -sum over k of (-t)^k / (k + 2)!, enough terms for |t| <= 1.
    constexpr int kTerms = sizeof(T) == 4 ? 9 : 17;
    double coefficient = -0.5;
    for (int k = 1; k <= kTerms; ++k) coefficient /= -(k + 2);
    Vec<T> series = splat(T(coefficient));
    for (int k = kTerms; k > 0; --k) series = series * t + T(coefficient *= -(k + 2));
    const Vec<T> near = p * log_p * log_p * series;
    const Vec<T> far = (p * (1 - t) - s) * T(a == 0 ? 0 : 1 / (a * a));
    return p > 0 ? ((t > -1) & (t < 1) ? near : far) : Vec<T>{};
}

// Writes s where the gradient will stand and notes which groups of vectors hold any, then visits only those.
template <class T, Kind kind>
void gradient_row(const T* grad, const T* p, double a, T* grad_scores, T* grad_alpha, int64_t n, int32_t* active) {
    const T exponent = static_cast<T>(1 - a);
    constexpr int64_t kStep = kGroup * kLanes<T>, kBlock = kCarryEvery * kLanes<T>;
    double weights = 0, weighted = 0;
    int64_t num_active = 0;
    for (int64_t from = 0; from < n; from += kBlock) {
        const int64_t to = std::min(n, from + kBlock);
        Vec<T> recent_weights = {}, recent_weighted = {};
        for (int64_t i = from; i < to; i += kStep) {
            Group<T> group = Group<T>::load_up_to(p + i, n - i, T(0));
            if (group.any_above(0)) {
                const Group<T> g = Group<T>::load_up_to(grad + i, n - i, T(0));
                for (int k = 0; k < kGroup; ++k) {
                    const Vec<T> s = weight<T, kind>(group.v[k], safe_logarithm<T>(group.v[k]), exponent);
                    recent_weights += s;
                    recent_weighted += s > 0 ? s * g.v[k] : Vec<T>{};
                    group.v[k] = s;
                }
                active[num_active++] = static_cast<int32_t>(i / kStep);
            }
            group.store_up_to(grad_scores + i, n - i);
        }
        weights += sum<T>(recent_weights);
        weighted += sum<T>(recent_weighted);
    }
    const T mean = static_cast<T>(weights > 0 ? weighted / weights : 0);
    double by_alpha = 0;
    for (int64_t index = 0; index < num_active; ++index) {
        const int64_t i = int64_t(active[index]) * kStep;
        Group<T> group = Group<T>::load_up_to(grad_scores + i, n - i, T(0));
        const Group<T> g = Group<T>::load_up_to(grad + i, n - i, T(0));
        Vec<T> recent = {};
        for (int k = 0; k < kGroup; ++k) {
            const Vec<T> s = group.v[k], centred = s > 0 ? g.v[k] - mean : Vec<T>{};
            group.v[k] = s * centred;
            if (grad_alpha) {
                const Vec<T> v = load_up_to(p + i + k * kLanes<T>, n - i - k * kLanes<T>, T(0));
                recent += alpha_slope<T>(v, safe_logarithm<T>(v), s, a) * centred;
            }
        }
        group.store_up_to(grad_scores + i, n - i);
        by_alpha += sum<T>(recent);
    }
    if (grad_alpha) *grad_alpha = static_cast<T>(by_alpha);
}

// Where the row stays in the nearest cache, two plain passes beat looking for what may be skipped.
constexpr int64_t kPlainRow = 2048;

// `slopes` has room for the row, in whole vectors.
template <class T, Kind kind, bool by_alpha>
void plain_gradient_row(const T* grad, const T* p, double a, T* grad_scores, T* grad_alpha, int64_t n, T* slopes) {
    constexpr int64_t kBlock = kCarryEvery * kLanes<T>;
    // A power is taken once and kept where the gradient will stand.
    constexpr bool is_kept = kind == Kind::kLowRoot;
    const T exponent = static_cast<T>(1 - a);
    double weights = 0, weighted = 0;
    for (int64_t from = 0; from < n; from += kBlock) {
        Vec<T> recent_weights = {}, recent_weighted = {};
        for (int64_t i = from; i < std::min(n, from + kBlock); i += kLanes<T>) {
            const Vec<T> v = load_up_to(p + i, n - i, T(0)), log_p = safe_logarithm<T>(v);
            const Vec<T> s = weight<T, kind>(v, log_p, exponent);
            const Vec<T> g = load_up_to(grad + i, n - i, T(0));
            recent_weights += s;
            recent_weighted += s > 0 ? s * g : Vec<T>{};
            if constexpr (is_kept) store_up_to(grad_scores + i, s, n - i);
            if constexpr (by_alpha) store(slopes + i, alpha_slope<T>(v, log_p, s, a));
        }
        weights += sum<T>(recent_weights);
        weighted += sum<T>(recent_weighted);
    }
    const T mean = static_cast<T>(weights > 0 ? weighted / weights : 0);
    double total = 0;
    const int64_t block = by_alpha ? kBlock : n;
    for (int64_t from = 0; from < n; from += block) {
        Vec<T> recent = {};
        for (int64_t i = from; i < std::min(n, from + block); i += kLanes<T>) {
            const Vec<T> g = load_up_to(grad + i, n - i, T(0)), v = load_up_to((is_kept ? grad_scores : p) + i, n - i, T(0));
            const Vec<T> s = is_kept ? v : weight<T, kind>(v, v, exponent), centred = s > 0 ? g - mean : Vec<T>{};
            store_up_to(grad_scores + i, s * centred, n - i);
            if constexpr (by_alpha) recent += load(slopes + i) * centred;
        }
        if constexpr (by_alpha) total += sum<T>(recent);
    }
    if constexpr (by_alpha) *grad_alpha = static_cast<T>(total);
}

// `scratch` has room for `gradient_scratch` numbers.
constexpr int64_t gradient_scratch(int64_t n) { return n + 64; }

template <class T, Kind kind>
void gradient_row_of(const T* grad, const T* p, double a, T* grad_scores, T* grad_alpha, int64_t n, T* scratch) {
    if (n > kPlainRow) gradient_row<T, kind>(grad, p, a, grad_scores, grad_alpha, n, reinterpret_cast<int32_t*>(scratch));
    else if (grad_alpha) plain_gradient_row<T, kind, true>(grad, p, a, grad_scores, grad_alpha, n, scratch);
    else plain_gradient_row<T, kind, false>(grad, p, a, grad_scores, grad_alpha, n, scratch);
}

// alpha > 2: one small p may outweigh all others. Counted from its gradient, and in double precision, no difference is small.
template <class T>
void steep_gradient_row(const T* grad, const T* p, double a, T* grad_scores, T* grad_alpha, int64_t n) {
    int64_t least = 0;
    for (int64_t i = 1; i < n; ++i)
        if (p[i] > 0 && !(p[least] > 0 && p[least] <= p[i])) least = i;
    const double least_prob = double(p[least]), least_grad = double(grad[least]);
    double weights = 0, weighted = 0, by_alpha = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (!(p[i] > 0)) continue;
        const double relative = std::pow(double(p[i]) / least_prob, 1 - a);
        weights += relative;
        weighted += relative * (double(grad[i]) - least_grad);
    }
    const double mean = weights > 0 ? weighted / weights : 0;
    for (int64_t i = 0; i < n; ++i) {
        const double prob = double(p[i]), centred = prob > 0 ? double(grad[i]) - least_grad - mean : 0;
        grad_scores[i] = centred == 0 ? T(0) : static_cast<T>(std::pow(prob, 1 - a) * centred);
        // s itself sums to nothing against the centred gradient, so of c = (p (1 - t) - s) / a^2 it may be left out.
        if (prob > 0) by_alpha += prob * (1 - a * std::log(prob)) / (a * a) * centred;
    }
    if (grad_alpha) *grad_alpha = static_cast<T>(by_alpha);
}

template <class T>
void backward_row(const T* grad, const T* p, double a, T* grad_scores, T* grad_alpha, int64_t n, T* scratch) {
    if (p[0] != p[0]) {
        std::fill(grad_scores, grad_scores + n, p[0]);
        if (grad_alpha) *grad_alpha = p[0];
        return;
    }
    switch (kind_of(a)) {
        case Kind::kSoftmax: return gradient_row_of<T, Kind::kSoftmax>(grad, p, a, grad_scores, grad_alpha, n, scratch);
        case Kind::kLinear: return gradient_row_of<T, Kind::kLinear>(grad, p, a, grad_scores, grad_alpha, n, scratch);
        case Kind::kSquare: return gradient_row_of<T, Kind::kSquare>(grad, p, a, grad_scores, grad_alpha, n, scratch);
        case Kind::kReciprocal: return gradient_row_of<T, Kind::kReciprocal>(grad, p, a, grad_scores, grad_alpha, n, scratch);
        case Kind::kInverseSquare:
            return gradient_row_of<T, Kind::kInverseSquare>(grad, p, a, grad_scores, grad_alpha, n, scratch);
        case Kind::kSteep: return steep_gradient_row(grad, p, a, grad_scores, grad_alpha, n);
        default: return gradient_row_of<T, Kind::kLowRoot>(grad, p, a, grad_scores, grad_alpha, n, scratch);
    }
}

}  // namespace anymax
