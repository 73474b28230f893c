// One row at a time: the entries that may be chosen are packed together, and the search works on those few.

#pragma once

#include "entmax/power.h"
#include "rows.h"
#include "scan.h"

namespace anymax {

struct Sums {
    double prob, slope, bend;
};

// What the conjugate needs of a row: sum p z, and lambda.
struct Solution {
    double expected, lambda;
};

// Packed scores end in a vector of minus infinity, which no power chooses.
template <class T> void pad(T* z, int64_t count) { store(z + count, splat(-kInfinity<T>)); }

// Packs x - shift for every x that may be chosen, those from `lowest` up; returns how many.
template <class T> int64_t pack_candidates(const T* x, int64_t n, T lowest, T shift, T* z) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += kLanes<T>) {
        const Vec<T> v = load_up_to(x + i, n - i, -kInfinity<T>);
        const Mask<T> near = v >= lowest;
        // In a long row whole vectors without a candidate are the rule, in a short one a guess would often be wrong.
        if (n < 4096 || any<T>(near)) count += pack<T>(z + count, v - shift, near);
    }
    pad(z, count);
    return count;
}

template <class T> int64_t keep_above(T* z, int64_t count, T threshold) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += kLanes<T>) {
        const Vec<T> v = load(z + i);
        kept += pack<T>(z + kept, v, v > threshold);
    }
    pad(z, kept);
    return kept;
}

template <bool is_rough, class T, class Power> Sums evaluate(const Power& power, const T* z, int64_t count) {
    const int64_t block = kCarryEvery * kLanes<T>;
    Sums sums = {0, 0, 0};
    for (int64_t from = 0; from < count; from += block) {
        const int64_t to = std::min(count, from + block);
        Terms<T> total = {};
        for (int64_t i = from; i < to; i += kLanes<T>) {
            const Terms<T> terms = power.terms(load(z + i), is_rough);
            total.prob += terms.prob;
            total.slope += terms.slope;
            total.bend += terms.bend;
        }
        sums.prob += sum<T>(total.prob);
        sums.slope += sum<T>(total.slope);
        sums.bend += sum<T>(total.bend);
    }
    return sums;
}

struct Bin {
    double count, total;
};

// How many scores are above a threshold, and what they sum to.
template <class T, int num> void add_bins(const T* z, int64_t count, const T* thresholds, Bin* bins) {
    const int64_t block = kCarryEvery * kLanes<T>;
    for (int64_t from = 0; from < count; from += block) {
        Vec<T> counts[num] = {}, totals[num] = {};
        for (int64_t i = from; i < std::min(count, from + block); i += kLanes<T>) {
            const Vec<T> v = load(z + i);
            for (int k = 0; k < num; ++k) {
                const Mask<T> is_above = v > thresholds[k];
                counts[k] += is_above ? splat<T>(1) : Vec<T>{};
                totals[k] += is_above ? v : Vec<T>{};
            }
        }
        for (int k = 0; k < num; ++k) bins[k] = {bins[k].count + sum<T>(counts[k]), bins[k].total + sum<T>(totals[k])};
    }
}

// The sum is convex in z, so no less than that of as many entries at their mean, which bounds lambda from below. In a long
// row with a dear power the entries are first parted by their scores, each part at its own mean.
template <class T, class Power> double heavy_start(Power& power, const T* z, int64_t count, double limit) {
    const T none = -kInfinity<T>;
    Bin all = {};
    add_bins<T, 1>(z, count, &none, &all);
    const double mean = all.total / all.count;
    double at = std::max(0.0, limit + mean);
    if (!Power::is_dear || count < 2048) return at;
    constexpr int kBins = 4, kParts = (kBins + kLanes<T>) / kLanes<T> * kLanes<T>;
    const T thresholds[kBins] = {T(mean / 4), T(mean / 2), T(mean * 3 / 4), T(mean)};
    Bin bins[kBins + 1] = {};
    add_bins<T, kBins>(z, count, thresholds, bins);
    bins[kBins] = all;
    T means[kParts] = {}, counts[kParts] = {};
    for (int k = 0; k <= kBins; ++k) {
        const Bin before = k ? bins[k - 1] : Bin{};
        const double part = bins[k].count - before.count;
        counts[k] = static_cast<T>(part);
        means[k] = part > 0 ? static_cast<T>((bins[k].total - before.total) / part) : T(0);
    }
    for (int step = 0; step < 4; ++step) {
        power.at.set(at);
        Sums s = {0, 0, 0};
        for (int i = 0; i < kParts; i += kLanes<T>) {
            const Terms<T> terms = power.terms(load(means + i));
            s.prob += sum<T>(terms.prob * load(counts + i));
            s.slope += sum<T>(terms.slope * load(counts + i));
        }
        at = std::max(0.0, at + s.prob / s.slope * power.gain(s.prob));
    }
    return at;
}

// With fewer candidates the search is over before a better start would be found.
constexpr int64_t kWorthAStart = 256;

// Some of the entries sum to no more than all, and to no less than as many at their mean, for the sum is convex in z: where
// those would sum to one bounds the place from below. Taken are all, and those in the half of the scores next to the maximum.
template <class T, class Power> double start_of(const Power& power, const T* z, int64_t count) {
    const auto place = [&](const Bin& bin) { return power.start()[0] + power.gain(bin.count) + bin.total / bin.count; };
    const T none = -kInfinity<T>;
    Bin all = {}, upper = {};
    add_bins<T, 1>(z, count, &none, &all);
    const T middle = static_cast<T>(all.total / all.count / 2);
    // The maximum is zero, and above the middle unless all are equal.
    if (middle == 0) return place(all);
    add_bins<T, 1>(z, count, &middle, &upper);
    return std::max({double(power.start()[0]), place(all), place(upper)});
}

// Finds where the packed scores z sum to one, leaves `power` there, and returns the place.
template <class T, class Power> double solve(Power& power, T* z, int64_t count) {
    double at, settled = 0;
    const double limit = limit_of<T>(power, static_cast<double>(count))[0];
    if constexpr (kIsHeavy<Power>) {
        at = heavy_start<T>(power, z, count, limit);
    } else {
        at = power.start()[0];
        if (count >= kWorthAStart) {
            at = std::min(start_of<T>(power, z, count), limit);
            count = keep_above(z, count, static_cast<T>(power.threshold(at)));
        }
    }
    bool is_rough = starts_rough<T>(power);
    for (int step = 0; step < 100; ++step) {
        power.at.set(at);
        const Sums s = is_rough ? evaluate<Power::has_rough>(power, z, count) : evaluate<false>(power, z, count);
        double newton = (s.prob - 1) / s.slope, bend = 0;
        if constexpr (!Power::is_linear) {
            const double gain = power.gain(s.prob);
            newton = s.prob / s.slope * gain;
            bend = power.curvature()[0] * gain * (s.prob * s.bend / (s.slope * s.slope) - 1);
        }
        // A rough sum may be off by one percent.
        const double lower_bound = at + newton - (is_rough ? 0.02 * s.prob / s.slope : 0);
        at = std::min(at + newton / (1 - std::min(bend, 0.5)), limit);
        if constexpr (kIsHeavy<Power>) at = std::max(at, 0.0);
        if (!is_rough && std::fabs(s.prob - 1) <= power.tolerance) break;
        if (s.prob < power.rough_until) is_rough = false;
        if (Power::is_linear) {
            // The slope counts the support; once that stays, the step is exact.
            if (s.slope == settled) break;
            settled = s.slope;
        }
        if (!kIsHeavy<Power> && count > 4 * kLanes<T>) count = keep_above(z, count, static_cast<T>(power.threshold(lower_bound)));
    }
    power.at.set(at);
    return at;
}

// Stores write(z) for every vector of the row, but clears groups of them with no entry above `threshold`.
template <class T, class Write>
ANYMAX_INLINE void write_row(const T* x, T* out, int64_t n, T top, T threshold, const Write& write) {
    for (int64_t i = 0; i < n; i += kGroup * kLanes<T>) {
        Group<T> group = Group<T>::load_up_to(x + i, n - i, -kInfinity<T>);
        for (auto& v : group.v) v -= top;
        const bool is_empty = !group.any_above(threshold);
        for (auto& v : group.v) v = is_empty ? Vec<T>{} : write(v);
        group.store_up_to(out + i, n - i);
    }
}

// Writes the probabilities of a row whose search has ended; returns sum p z if it is wanted.
template <class T, class Power>
double write_probs(const Power& power, double at, const T* x, T* out, int64_t n, T top, bool wants_expected) {
    const T threshold = static_cast<T>(power.threshold(at));
    if (!wants_expected) {
        write_row(x, out, n, top, threshold, [&](Vec<T> z) { return power.prob(z); });
        return 0;
    }
    CarriedSums<T, 1> expected;
    write_row(x, out, n, top, threshold, [&](Vec<T> z) {
        const Vec<T> p = power.prob(z);
        expected.add({p > 0 ? p * z : Vec<T>{}});
        return p;
    });
    expected.carry();
    return expected.sums[0];
}

template <class T, class Power> T lowest_candidate(const Power& power, T top) {
    if constexpr (kIsHeavy<Power>)
        return static_cast<T>(std::max<double>(double(top) + power.lowest(), std::numeric_limits<T>::lowest()));
    else return top - static_cast<T>(1 / power.exponent());
}

template <class T, class Power>
Solution entmax_row(Power power, const T* x, T* out, int64_t n, T top, T* scratch, bool wants_expected) {
    const int64_t count = pack_candidates(x, n, lowest_candidate(power, top), top, scratch);
    const double at = solve(power, scratch, count);
    return {write_probs(power, at, x, out, n, top, wants_expected), at - static_cast<double>(power.start()[0])};
}

// alpha = 1. The expected score has no weight in the conjugate.
template <class T> Solution softmax_row(const T* x, T* out, int64_t n, T top) {
    const int64_t block = kCarryEvery * kLanes<T>;
    double total = 0;
    for (int64_t from = 0; from < n; from += block) {
        const int64_t to = std::min(n, from + block);
        Vec<T> recent = {};
        for (int64_t i = from; i < to; i += kLanes<T>) {
            const Vec<T> p = exponential(load_up_to(x + i, n - i, -kInfinity<T>) - top);
            store_up_to(out + i, p, n - i);
            recent += p;
        }
        total += sum<T>(recent);
    }
    const T scale = static_cast<T>(1 / total);
    for (int64_t i = 0; i < n; ++i) out[i] *= scale;
    return {0, std::log(total)};
}

// alpha > 2. The power is steep where an entry enters the support: there p_i = [a (z_i - theta)]^(1/a) shows every rounding of
// theta. So the unknown is v, the probability of the last entry that is in, with score x_k, and no difference is small:
//
//     p_i = [v^a + a (x_i - x_k)]^(1/a).
//
// An entry is in if the sum without it, at v = 0, is still below one, which a binary search over the sorted candidates finds.
template <class T> Solution steep_row(const T* x, T* out, int64_t n, T top, double a, T* scratch) {
    int64_t count = pack_candidates(x, n, static_cast<T>(top - 1 / a), T(0), scratch);
    std::sort(scratch, scratch + count, [](T left, T right) { return left > right; });
    const auto prob = [a](double above_last, double v, double va) {
        // v^a may be too small for a double where v is not.
        return above_last == 0 ? v : std::pow(va + a * above_last, 1 / a);
    };
    const auto total_of = [&](int64_t last, double v) {
        const double va = std::pow(v, a);
        // What the sum of many entries loses by rounding is carried along.
        double total = 0, lost = 0;
        for (int64_t i = 0; i <= last; ++i) {
            const double term = prob(double(scratch[i]) - double(scratch[last]), v, va) - lost, next = total + term;
            lost = next - total - term;
            total = next;
        }
        return total;
    };
    int64_t last = 0;
    for (int64_t out_of_reach = count; out_of_reach - last > 1;) {
        const int64_t middle = (last + out_of_reach) / 2;
        (total_of(middle, 0) < 1 ? last : out_of_reach) = middle;
    }
    double low = 0, high = 1, v = 1;
    for (int step = 0; step < 200 && high - low > 1e-17; ++step) {
        v = (low + high) / 2;
        const double total = total_of(last, v);
        if (total == 1) break;
        (total < 1 ? low : high) = v;
        const double va = std::pow(v, a);
        double slope = 0;
        for (int64_t i = 0; i <= last; ++i)
            slope += std::pow(v / prob(double(scratch[i]) - double(scratch[last]), v, va), a - 1);
        const double newton = v + (1 - total) / slope;
        if (!(newton > low && newton < high)) continue;
        // The step of Newton's method narrows the bracket from its own side.
        const double there = total_of(last, newton);
        v = newton;
        if (there == 1) break;
        (there < 1 ? low : high) = newton;
    }
    const double va = std::pow(v, a), total = total_of(last, v);
    const T lowest = scratch[last];
    double expected = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double p = x[i] >= lowest ? prob(double(x[i]) - double(lowest), v, va) / total : 0;
        if (p > 0) expected += p * (double(x[i]) - double(top));
        out[i] = static_cast<T>(p);
    }
    const double wa = va + a * (double(top) - double(lowest));
    return {expected, (1 - wa) / a};
}

// Rows without an answer: nothing to choose from gives zeros; a NaN or +inf leaves nothing to say.
template <class T> bool settle_without_search(const Row& row, T* out, T* conjugate, T* shift, int64_t n) {
    if (!row.has_nan && !std::isinf(row.top)) return false;
    const T fill = row.has_nan || row.top > 0 ? std::numeric_limits<T>::quiet_NaN() : T(0);
    std::fill(out, out + n, fill);
    if (conjugate) *conjugate = fill;
    if (shift) *shift = fill == fill ? kInfinity<T> : fill;
    return true;
}

template <class T> T conjugate_of(const Solution& solution, double alpha) {
    return static_cast<T>(((alpha - 1) * solution.expected + solution.lambda) / alpha);
}

// visit(power) with the power of alpha; softmax and alpha above 2 have ways of their own.
template <class T, class Visit> auto with_power(double a, const Visit& visit) {
    const Vec<T> exponent = splat(static_cast<T>(a));
    switch (kind_of(a)) {
        case Kind::kLinear: return visit(Linear<T>(exponent));
        case Kind::kSquare: return visit(Square<T>(exponent));
        case Kind::kLowRoot: return visit(Root<T, true>(exponent));
        case Kind::kHighRoot: return visit(Root<T, false>(exponent));
        case Kind::kReciprocal: return visit(Reciprocal<T>(exponent));
        case Kind::kInverseSquare: return visit(InverseSquare<T>(exponent));
        case Kind::kHeavy: return visit(Heavy<T>(exponent));
        default: return visit(NearExponential<T>(exponent));
    }
}

// Lambda for scores as they are, not relative to their maximum.
template <class T> T shift_of(double top, const Solution& solution) {
    return static_cast<T>(top + solution.lambda);
}

// `out` may be the row itself. Returns the maximum.
template <class T> T long_row(const T* x, double alpha, T* out, T* conjugate, int64_t n, T* scratch, T* shift = nullptr) {
    const Row row = scan(x, n);
    const T top = static_cast<T>(row.top);
    if (settle_without_search(row, out, conjugate, shift, n)) return top;
    const double a = alpha - 1;
    Solution solution = {};
    if (kind_of(a) == Kind::kSoftmax) solution = softmax_row(x, out, n, top);
    else if (kind_of(a) == Kind::kSteep) solution = steep_row(x, out, n, top, a, scratch);
    else solution = with_power<T>(a, [&](auto power) { return entmax_row(power, x, out, n, top, scratch, conjugate != nullptr); });
    if (conjugate) *conjugate = conjugate_of<T>(solution, alpha);
    if (shift) *shift = shift_of<T>(row.top, solution);
    return top;
}

}  // namespace anymax
