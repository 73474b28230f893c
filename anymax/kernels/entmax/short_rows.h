// Several short rows side by side, one per lane: the sums of the search need no reduction across a vector, and its scalar
// steps serve all rows at once. Worth it where a row has too few candidates to fill vectors, and the search is mostly waiting.

#pragma once

#include "entmax/long_rows.h"

namespace anymax {

// The longest row that is treated so.
template <class T> constexpr int64_t kShortRow = 16 * kLanes<T>;

template <class T> struct Member {
    const T* x;
    T* out;
    T* conjugate;
    double alpha;
};

// Entries of scratch that rows of n entries need: a packed form of each, and their columns.
template <class T> constexpr int64_t packed_size(int64_t n) { return (n + 2 * kLanes<T>) / kLanes<T> * kLanes<T>; }
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
    for (int lane = 0; lane < kLanes<T>; ++lane) exponents[lane] = static_cast<T>(rows[lane].alpha - 1);
    T tops[kLanes<T>];
    bool is_settled[kLanes<T>];
    int64_t counts[kLanes<T>], longest = 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) {
        const Member<T>& row = rows[lane];
        T* packed = scratch + lane * stride;
        if (lane >= num_rows) {
            std::copy_n(packed - stride, counts[lane - 1], packed);
            pad(packed, counts[lane] = counts[lane - 1]);
            continue;
        }
        const Row scanned = scan(row.x, n);
        tops[lane] = static_cast<T>(scanned.top);
        is_settled[lane] = settle_without_search(scanned, row.out, row.conjugate, n);
        if (is_settled[lane]) {
            // Something that is found at once.
            packed[0] = 0;
            counts[lane] = 1;
            pad(packed, 1);
        } else {
            const Power power(splat(exponents[lane]));
            counts[lane] = pack_candidates(row.x, n, lowest_candidate(power, tops[lane]), tops[lane], packed);
        }
        longest = std::max(longest, counts[lane]);
    }
    const int64_t length = (longest + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
    for (int lane = 0; lane < kLanes<T>; ++lane) {
        T* packed = scratch + lane * stride;
        for (int64_t i = counts[lane]; i < length; ++i) packed[i] = -kInfinity<T>;
    }
    for (int64_t j = 0; j < length; j += kLanes<T>) {
        for (int lane = 0; lane < kLanes<T>; ++lane) columns[j + lane] = load(scratch + lane * stride + j);
        transpose<T>(columns + j);
    }
    Power together(exponents);
    solve_columns<T>(together, columns, length);
    for (int lane = 0; lane < num_rows; ++lane) {
        if (is_settled[lane]) continue;
        const Member<T>& row = rows[lane];
        Power power(splat(exponents[lane]));
        const double at = double(together.at.high[lane]) + double(together.at.low[lane]);
        power.at.set(at);
        const double expected = write_probs(power, at, row.x, row.out, n, tops[lane], row.conjugate != nullptr);
        if (row.conjugate) *row.conjugate = conjugate_of<T>({expected, at - double(power.start()[0])}, row.alpha);
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

// Rows travel together with rows of the same kind, and of an alpha that takes as many steps. A few that do not fill a vector,
// and the kinds with a search of their own, go alone.
template <class T, class RowAt>
void short_rows(int64_t first, int64_t last, int64_t n, const RowAt& row_at, T* scratch) {
    struct Company {
        Kind kind;
        int count = 0;
        Member<T> members[kLanes<T>] = {};
    };
    Company companies[] = {{Kind::kNearExponential}, {Kind::kLowRoot},    {Kind::kSquare},
                           {Kind::kHighRoot},        {Kind::kHighRoot},   {Kind::kLinear},
                           {Kind::kReciprocal},      {Kind::kInverseSquare}, {Kind::kHeavy},
                           {Kind::kHeavy}};
    const auto company_of = [&](double a) -> Company* {
        switch (kind_of(a)) {
            case Kind::kNearExponential: return companies;
            case Kind::kLowRoot: return companies + 1;
            case Kind::kSquare: return companies + 2;
            case Kind::kHighRoot: return companies + (a < 0.75 ? 3 : 4);
            case Kind::kLinear: return companies + 5;
            case Kind::kReciprocal: return companies + 6;
            case Kind::kInverseSquare: return companies + 7;
            case Kind::kHeavy: return companies + (a <= kRoughTail ? 8 : 9);
            default: return nullptr;
        }
    };
    const auto alone = [&](const Member<T>& m) { long_row(m.x, m.alpha, m.out, m.conjugate, n, scratch); };
    for (int64_t row = first; row < last; ++row) {
        const Member<T> member = row_at(row);
        Company* company = company_of(member.alpha - 1);
        if (!company) {
            alone(member);
            continue;
        }
        company->members[company->count++] = member;
        if (company->count < kLanes<T>) continue;
        entmax_together_of(company->kind, company->members, company->count, n, scratch);
        company->count = 0;
    }
    for (Company& company : companies) {
        if (company.count > kLanes<T> / 4) {
            // The search takes the alpha of every lane from its row.
            for (int i = company.count; i < kLanes<T>; ++i) company.members[i] = company.members[company.count - 1];
            entmax_together_of(company.kind, company.members, company.count, n, scratch);
        } else {
            for (int i = 0; i < company.count; ++i) alone(company.members[i]);
        }
    }
}

}  // namespace anymax
