// The power 1/a of entmax, in the forms that are exact or fast where they apply, and the step of the search.

#pragma once

#include "vector.h"

namespace anymax {

enum class Kind { kSoftmax, kNearExponential, kLowRoot, kSquare, kHighRoot, kLinear, kSteep, kReciprocal, kInverseSquare, kHeavy };

inline Kind kind_of(double a) {
    if (a == 0) return Kind::kSoftmax;
    if (a == 1) return Kind::kLinear;
    if (a == 0.5) return Kind::kSquare;
    if (a > 1) return Kind::kSteep;
    if (a < 0) return a == -1 ? Kind::kReciprocal : a == -0.5 ? Kind::kInverseSquare : Kind::kHeavy;
    if (a < 0.1) return Kind::kNearExponential;
    return a < 0.5 ? Kind::kLowRoot : Kind::kHighRoot;
}

template <class T> struct Terms {
    Vec<T> prob, slope, bend;  // p, p / b, p / b^2
};

// A number as the sum of two of type T, so that z - number is as exact as z is.
template <class T> struct Split {
    Vec<T> high, low;
    void set(double value) {
        const T first = static_cast<T>(value);
        high = splat(first);
        low = splat(static_cast<T>(value - first));
    }
    void set_lanes(Vec<T> value) {
        high = value;
        low = Vec<T>{};
    }
    void move(Vec<T> step) {
        const Vec<T> before = high;
        high = before + step;
        low += step - (high - before);
    }
    ANYMAX_INLINE Vec<T> below(Vec<T> z) const { return (z - high) - low; }
};

// (1 - s^-a) / a without cancellation near s = 1 and near a = 0.
inline double general_gain(double a, double s) {
    const double e = s - 1;
    if (std::fabs(e) < 1e-3) return e * (1 - (1 + a) / 2 * e * (1 - (2 + a) / 3 * e));
    return -std::expm1(-a * std::log(s)) / a;
}
template <class T> ANYMAX_INLINE Vec<T> general_gain(Vec<T> a, Vec<T> s) {
    const Vec<T> e = s - 1;
    const T third = T(1) / 3, fifth = T(1) / 5;
    const Vec<T> near = e * (1 - (1 + a) / 2 * e * (1 - (2 + a) * third * e * (1 - (3 + a) / 4 * e)));
    const Vec<T> log_s = logarithm(s), x = a * log_s;
    const Vec<T> flat = log_s * (1 - x / 2 * (1 - x * third * (1 - x / 4 * (1 - x * fifth))));
    const Vec<T> far = (x < T(0.02)) & (x > T(-0.02)) ? flat : (1 - exponential(-x)) / a;
    return (e < T(0.02)) & (e > T(-0.02)) ? near : far;
}

// The four ways to take the power 1/a. Each knows where its search starts and what it cannot pass with n entries, how to turn
// z into terms, gain(S), and the factor of the bend; `at` is theta, but lambda for NearExponential. A vector holds entries of
// one row, or one entry each of several rows. A power that is dear has a rough form for the first steps of the search.

template <class T> struct Linear {  // alpha = 2
    Split<T> at;
    explicit Linear(Vec<T>) {}
    static constexpr bool has_rough = false;
    static constexpr double rough_until = 0;
    static constexpr bool is_linear = true;
    // The sum has a kink wherever an entry leaves: only a settled support ends the search.
    static constexpr double tolerance = 0;
    static constexpr double exponent() { return 1; }
    template <class S> static S gain(S s) { return 1 - 1 / s; }
    static Vec<T> limit(double n) { return splat(static_cast<T>(-1 / n)); }
    double threshold(double place) const { return place; }
    Vec<T> start() const { return splat<T>(-1); }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        return at_least<T>(at.below(z), Vec<T>{});
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool = false) const {
        const Vec<T> p = prob(z);
        return {p, p > 0 ? splat<T>(1) : Vec<T>{}, Vec<T>{}};
    }
};

template <class T> struct Square {  // alpha = 1.5
    Split<T> at;
    explicit Square(Vec<T>) {}
    static constexpr bool has_rough = false;
    static constexpr double rough_until = 0;
    static constexpr bool is_linear = false;
    static constexpr double exponent() { return 0.5; }
    static Vec<T> curvature() { return splat<T>(0.25); }
    static Vec<T> limit(double n) { return splat(static_cast<T>(-2 / std::sqrt(n))); }
    double threshold(double place) const { return place; }
    static constexpr double tolerance = sizeof(T) == 4 ? 1e-5 : 1e-9;
    Vec<T> start() const { return splat<T>(-2); }
    double gain(double s) const { return 2 - 2 / std::sqrt(s); }
    Vec<T> gain(Vec<T> s) const { return 2 - 2 / square_root(s); }
    ANYMAX_INLINE Vec<T> base(Vec<T> z) const {
        return at_least<T>(at.below(z) * T(0.5), Vec<T>{});
    }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        const Vec<T> b = base(z);
        return b * b;
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool = false) const {
        const Vec<T> b = base(z);
        return {b * b, b, b > 0 ? splat<T>(1) : Vec<T>{}};
    }
};

// 1.1 <= alpha < 2, exact where b is near zero. `bends` up to alpha 1.5: above, the second derivative has poles at the edge of
// the support, and without it no division is needed.
template <class T, bool bends> struct Root {
    Split<T> at;
    Vec<T> a, inverse;
    // Once the sum is below `rough_until`, the next step is taken from an exact one. Newton's method needs its last steps
    // exact, Halley's only one.
    static constexpr double rough_until = bends ? 1.3 : 1.03;
    double tolerance;
    static constexpr bool is_linear = false;
    static constexpr bool has_rough = sizeof(T) == 4;
    double exponent() const { return a[0]; }
    Vec<T> curvature() const { return bends ? (1 - a) / 2 : Vec<T>{}; }
    Vec<T> limit(double n) const { return -inverse * exponential(-a * T(std::log(n))); }
    double threshold(double place) const { return place; }
    explicit Root(Vec<T> a) : a(a), inverse(1 / a) {
        const T largest = maximum<T>(a);
        tolerance = sizeof(T) == 8 ? 1e-9 : largest < 0.4 ? 1e-3 : largest < 0.75 ? 3e-5 : 3e-6;
    }
    Vec<T> start() const { return -inverse; }
    double gain(double s) const { return general_gain(a[0], s); }
    Vec<T> gain(Vec<T> s) const { return general_gain<T>(a, s); }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const { return terms(z).prob; }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool is_rough = false) const {
        const Vec<T> b = (z - at.high) * a - at.low * a;
        const Mask<T> chosen = b > 0;
        const Vec<T> safe = chosen ? b : splat<T>(1);
        Vec<T> power;
        if constexpr (has_rough)
            power = is_rough ? rough_power(safe, inverse - 1) : exponential(logarithm(safe) * (inverse - 1));
        else
            power = exponential(logarithm(safe) * (inverse - 1));
        const Vec<T> slope = chosen ? power : Vec<T>{};
        return {slope * safe, slope, bends ? slope / safe : Vec<T>{}};
    }
};

template <class T> struct NearExponential {  // 1 < alpha < 1.1, exact where b is near one
    Split<T> at;
    Vec<T> a, inverse;
    static constexpr bool is_linear = false;
    static constexpr bool has_rough = false;
    static constexpr double rough_until = 0;
    double exponent() const { return a[0]; }
    Vec<T> curvature() const { return (1 - a) / 2; }
    Vec<T> limit(double n) const { return splat(static_cast<T>(std::log(n))); }
    double threshold(double place) const { return place - 1 / exponent(); }
    static constexpr double tolerance = sizeof(T) == 4 ? 1e-3 : 1e-9;
    explicit NearExponential(Vec<T> a) : a(a), inverse(1 / a) {}
    Vec<T> start() const { return Vec<T>{}; }
    double gain(double s) const { return general_gain(a[0], s); }
    Vec<T> gain(Vec<T> s) const { return general_gain<T>(a, s); }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const { return terms(z).prob; }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool = false) const {
        const Vec<T> t = at.below(z) * a;
        const Mask<T> chosen = t > -1;
        const Vec<T> safe = chosen ? t : Vec<T>{};
        const Vec<T> power = exponential(logarithm_of_one_plus(safe) * inverse);
        const Vec<T> p = chosen ? power : Vec<T>{};
        const Vec<T> reciprocal = 1 / (1 + safe);
        return {p, p * reciprocal, p * reciprocal * reciprocal};
    }
};

// alpha < 1: every entry has a probability, and b = 1 + a (z - lambda) is never below one. `at` is lambda.
template <class T> struct HeavyTail {
    Split<T> at;
    static constexpr bool is_dear = false;
    static constexpr bool is_linear = false;
    static constexpr bool has_rough = false;
    static constexpr double rough_until = 0;
    // Halley's method cubes this. A step more costs little where the power is cheap.
    static constexpr double tolerance = sizeof(T) == 4 ? 5e-4 : 1e-6;
    static double threshold(double) { return -kInfinity<double>; }
    // What is below this counts for nothing in the sum.
    static double lowest() { return -kInfinity<double>; }
    static Vec<T> start() { return Vec<T>{}; }
};

template <class T> struct Reciprocal : HeavyTail<T> {  // alpha = 0
    explicit Reciprocal(Vec<T>) {}
    static constexpr double exponent() { return -1; }
    static Vec<T> curvature() { return splat<T>(1); }
    template <class S> static S gain(S s) { return s - 1; }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const { return 1 / (1 - this->at.below(z)); }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool = false) const {
        const Vec<T> p = prob(z);
        return {p, p * p, p * p * p};
    }
};

template <class T> struct InverseSquare : HeavyTail<T> {  // alpha = 0.5
    explicit InverseSquare(Vec<T>) {}
    static constexpr double exponent() { return -0.5; }
    static Vec<T> curvature() { return splat<T>(0.75); }
    static double gain(double s) { return 2 * std::sqrt(s) - 2; }
    static Vec<T> gain(Vec<T> s) { return 2 * square_root(s) - 2; }
    ANYMAX_INLINE Vec<T> root(Vec<T> z) const { return 1 / (1 - this->at.below(z) * T(0.5)); }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const {
        const Vec<T> r = root(z);
        return r * r;
    }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool = false) const {
        const Vec<T> r = root(z), p = r * r;
        return {p, p * r, p * p};
    }
};

template <class T> struct Heavy : HeavyTail<T> {  // 0 < alpha < 1
    Vec<T> a, inverse;
    explicit Heavy(Vec<T> a) : a(a), inverse(1 / a) {}
    static constexpr bool is_dear = true;
    static constexpr double tolerance = sizeof(T) == 4 ? 2.5e-3 : 1e-5;
    static constexpr bool has_rough = sizeof(T) == 4;
    static constexpr double rough_until = 1.3;
    // No entry below this score has a probability of exp(log_prob) or more where lambda is zero: expm1(a log_prob) / a, with
    // a bound of expm1 that costs nothing.
    double score_of(double log_prob) const {
        const double exponent = a[0] * log_prob;
        return exponent < 1 ? log_prob * (1 + exponent) : std::ldexp(1.0, static_cast<int>(exponent * 1.4427) + 1) / a[0];
    }
    // Below exp(-69) = 1e-30 no sum notices an entry; below the smallest float or double it is zero.
    double lowest() const { return score_of(-69); }
    double threshold(double place) const { return place + score_of(sizeof(T) == 4 ? -87.4 : -745.2); }
    double exponent() const { return a[0]; }
    Vec<T> curvature() const { return (1 - a) / 2; }
    double gain(double s) const { return general_gain(a[0], s); }
    Vec<T> gain(Vec<T> s) const { return general_gain<T>(a, s); }
    ANYMAX_INLINE Vec<T> prob(Vec<T> z) const { return terms(z).prob; }
    ANYMAX_INLINE Terms<T> terms(Vec<T> z, bool is_rough = false) const {
        const Vec<T> t = this->at.below(z) * a;
        const Mask<T> chosen = t < kInfinity<T>;
        const Vec<T> safe = chosen ? t : Vec<T>{};
        const Vec<T> base = safe + 1, reciprocal = 1 / base;
        Vec<T> power;
        if constexpr (has_rough) {
            if (is_rough) power = rough_power(base, inverse);
        }
        // As logarithm_of_one_plus, with one division for all.
        if (!has_rough || !is_rough) power = exponential((logarithm(base) + (safe - (base - 1)) * reciprocal) * inverse);
        const Vec<T> p = chosen ? power : Vec<T>{};
        return {p, p * reciprocal, p * reciprocal * reciprocal};
    }
};

// The rough power is good enough up to alpha 0.85.
constexpr double kRoughTail = -0.15;

template <class Power> constexpr bool kIsHeavy = false;
template <class T> constexpr bool kIsHeavy<Reciprocal<T>> = true;
template <class T> constexpr bool kIsHeavy<InverseSquare<T>> = true;
template <class T> constexpr bool kIsHeavy<Heavy<T>> = true;

template <class T, class Power> bool starts_rough([[maybe_unused]] const Power& power) {
    if constexpr (Power::has_rough && kIsHeavy<Power>) return maximum<T>(power.a) <= T(kRoughTail);
    else return Power::has_rough;
}

// Where n equal entries would be, with room for rounding: lambda is nowhere beyond.
template <class T, class Power> Vec<T> limit_of(const Power& power, double n) {
    if constexpr (kIsHeavy<Power>) return power.gain(splat(static_cast<T>(n))) * T(1 + 1e-5);
    else return power.limit(n);
}

}  // namespace anymax
