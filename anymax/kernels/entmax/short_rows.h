// Several short rows side by side, one per lane: the sums of the search need no reduction across a vector, and its scalar
// steps serve all rows at once. Worth it where a row has too few candidates to fill vectors, and the search is mostly waiting.

#pragma once

#include "entmax/long_rows.h"

namespace anymax {

// The longest row that is treated so.
template <class T> constexpr int64_t kShortRow = 16 * kLanes<T>;

// Beside the probabilities the conjugate is written, and lambda for the scores as they are, unless null.
template <class T> struct Member {
    const T* x;
    T* out;
    T* conjugate;
    double alpha;
    T* shift = nullptr;
    T top = 0;
};

// Entries of scratch that rows of n entries need: a packed form of each with room for its padding, and their columns.
template <class T> constexpr int64_t packed_size(int64_t n) { return (n + 3 * kLanes<T>) / kLanes<T> * kLanes<T>; }
template <class T> constexpr int64_t short_rows_scratch(int64_t n) { return 2 * kLanes<T> * packed_size<T>(n); }

template <bool is_rough, class T, class Power>
ANYMAX_INLINE Terms<T> evaluate_columns(const Power& power, const Vec<T>* z, int64_t count) {
    // Two chains of sums: shorter waits, and half the rounding.
    Terms<T> even = {}, odd = {};
    for (int64_t j = 0; j < count; j += 2) {
        const Terms<T> first = power.terms(z[j], is_rough), second = power.terms(z[j + 1], is_rough);
        even.prob += first.prob;
        even.slope += first.slope;
        even.bend += first.bend;
        odd.prob += second.prob;
        odd.slope += second.slope;
        odd.bend += second.bend;
    }
    return {even.prob + odd.prob, even.slope + odd.slope, even.bend + odd.bend};
}

// As `solve` for one row, but lane by lane, until every row is done.
template <class T, class Power> void solve_columns(Power& power, const Vec<T>* z, int64_t count) {
    power.at.set_lanes(power.start());
    const Vec<T> limit = limit_of<T>(power, static_cast<double>(count));
    if constexpr (kIsHeavy<Power>) {
        // As heavy_start, lane by lane.
        Vec<T> total = {}, entries = {};
        for (int64_t j = 0; j < count; ++j) {
            const Mask<T> is_entry = z[j] > -kInfinity<T>;
            total += is_entry ? z[j] : Vec<T>{};
            entries += is_entry ? splat<T>(1) : Vec<T>{};
        }
        const Vec<T> guess = total / entries + power.gain(entries);
        power.at.set_lanes(guess > 0 ? guess : Vec<T>{});
    }
    Vec<T> settled = {};
    bool is_rough = starts_rough<T>(power);
    for (int step = 0; step < 50; ++step) {
        const Terms<T> s = is_rough ? evaluate_columns<Power::has_rough, T>(power, z, count)
                                    : evaluate_columns<false, T>(power, z, count);
        const Vec<T> excess = s.prob - 1;
        Vec<T> step_size = excess / s.slope;
        if constexpr (!Power::is_linear) {
            const Vec<T> gain = power.gain(s.prob);
            const Vec<T> bend = power.curvature() * gain * (s.prob * s.bend / (s.slope * s.slope) - 1);
            step_size = s.prob / s.slope * gain / (1 - (bend < T(0.5) ? bend : splat<T>(0.5)));
        }
        if constexpr (kIsHeavy<Power>) step_size = step_size > -power.at.high ? step_size : -power.at.high;
        const Vec<T> room = limit - power.at.high;
        power.at.move(step_size < room ? step_size : room);
        const T tolerance = static_cast<T>(power.tolerance);
        const Mask<T> done = Power::is_linear ? s.slope == settled : (excess <= tolerance) & (excess >= -tolerance);
        if (!is_rough && !any<T>(~done)) break;
        if (!any<T>(s.prob > T(power.rough_until))) is_rough = false;
        settled = s.slope;
    }
}

// The candidates of each row are packed, then turned into columns that hold one candidate of every row, and searched together.
// The first `num_rows` are written, each of which may be its own result; copies of the last fill the other lanes.
template <class T, class Power> void entmax_together(const Member<T>* rows, int num_rows, int64_t n, T* scratch) {
    const int64_t stride = packed_size<T>(n);
    Vec<T>* columns = reinterpret_cast<Vec<T>*>(scratch + kLanes<T> * stride);
    Vec<T> exponents;
    for (int lane = 0; lane < kLanes<T>; ++lane) exponents[lane] = static_cast<T>(rows[std::min(lane, num_rows - 1)].alpha - 1);
    int64_t counts[kLanes<T>], longest = 0;
    for (int lane = 0; lane < num_rows; ++lane) {
        const Power power(splat(exponents[lane]));
        const T top = rows[lane].top;
        counts[lane] = pack_candidates(rows[lane].x, n, lowest_candidate(power, top), top, scratch + lane * stride);
        longest = std::max(longest, counts[lane]);
    }
    for (int lane = 0; lane < num_rows; ++lane)
        for (int64_t i = counts[lane] + kLanes<T>; i <= longest; i += kLanes<T>) pad(scratch + lane * stride, i);
    for (int64_t j = 0; j < longest; j += kLanes<T>) {
        for (int lane = 0; lane < kLanes<T>; ++lane) columns[j + lane] = load(scratch + std::min(lane, num_rows - 1) * stride + j);
        transpose<T>(columns + j);
    }
    Power together(exponents);
    solve_columns<T>(together, columns, longest);
    for (int lane = 0; lane < num_rows; ++lane) {
        const Member<T>& row = rows[lane];
        Power power(splat(exponents[lane]));
        const double at = double(together.at.high[lane]) + double(together.at.low[lane]);
        power.at.set(at);
        const double expected = write_probs(power, at, row.x, row.out, n, row.top, row.conjugate != nullptr);
        const Solution solution = {expected, at - double(power.start()[0])};
        if (row.conjugate) *row.conjugate = conjugate_of<T>(solution, row.alpha);
        if (row.shift) *row.shift = shift_of<T>(double(row.top), solution);
    }
}

template <class T> void entmax_together_of(Kind kind, const Member<T>* rows, int num_rows, int64_t n, T* scratch) {
    switch (kind) {
        case Kind::kLinear: return entmax_together<T, Linear<T>>(rows, num_rows, n, scratch);
        case Kind::kSquare: return entmax_together<T, Square<T>>(rows, num_rows, n, scratch);
        case Kind::kLowRoot: return entmax_together<T, Root<T, true>>(rows, num_rows, n, scratch);
        case Kind::kHighRoot: return entmax_together<T, Root<T, false>>(rows, num_rows, n, scratch);
        case Kind::kNearExponential: return entmax_together<T, NearExponential<T>>(rows, num_rows, n, scratch);
        case Kind::kReciprocal: return entmax_together<T, Reciprocal<T>>(rows, num_rows, n, scratch);
        case Kind::kInverseSquare: return entmax_together<T, InverseSquare<T>>(rows, num_rows, n, scratch);
        case Kind::kHeavy: return entmax_together<T, Heavy<T>>(rows, num_rows, n, scratch);
        default: break;
    }
}

// Rows travel together with rows of the same kind, in the order of alpha, so that they take as many steps and candidates. A few
// that do not fill a vector, and the kinds with a search of their own, go alone.
template <class T, class RowAt>
void short_rows(int64_t first, int64_t last, int64_t n, const RowAt& row_at, T* scratch) {
    constexpr int kKinds = 10, kBins = 16;
    uint8_t bins[kMostRowsPerPart];
    T tops[kMostRowsPerPart];
    int starts[kKinds * kBins + 1] = {};
    constexpr uint8_t kNone = kKinds * kBins;
    for (int64_t row = first; row < last; ++row) {
        const Member<T> m = row_at(row);
        const Kind kind = kind_of(m.alpha - 1);
        uint8_t& bin = bins[row - first];
        bin = kNone;
        if (kind == Kind::kSoftmax || kind == Kind::kSteep) {
            long_row(m.x, m.alpha, m.out, m.conjugate, n, scratch, m.shift);
            continue;
        }
        // All rows are looked at first, in their order, which is the order memory is fastest in.
        const Row scanned = scan(m.x, n);
        if (settle_without_search(scanned, m.out, m.conjugate, m.shift, n)) continue;
        tops[row - first] = static_cast<T>(scanned.top);
        bin = static_cast<uint8_t>(int(kind) * kBins + std::min(kBins - 1, int(std::fabs(m.alpha - 1) * kBins)));
        ++starts[bin + 1];
    }
    for (int bin = 0; bin < kNone; ++bin) starts[bin + 1] += starts[bin];
    const int count = starts[kNone];
    int16_t sorted[kMostRowsPerPart];
    for (int i = 0; i < last - first; ++i)
        if (bins[i] != kNone) sorted[starts[bins[i]]++] = static_cast<int16_t>(i);
    for (int from = 0, to; from < count; from = to) {
        Member<T> members[kLanes<T>];
        const int kind = bins[sorted[from]] / kBins;
        for (to = from; to < count && to - from < kLanes<T> && bins[sorted[to]] / kBins == kind; ++to) {
            members[to - from] = row_at(first + sorted[to]);
            members[to - from].top = tops[sorted[to]];
        }
        if (to - from > kLanes<T> / 4) {
            entmax_together_of(Kind(kind), members, to - from, n, scratch);
        } else {
            for (const Member<T>* m = members; m < members + (to - from); ++m)
                long_row(m->x, m->alpha, m->out, m->conjugate, n, scratch, m->shift);
        }
    }
}

}  // namespace anymax
