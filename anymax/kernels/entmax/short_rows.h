// Several short rows side by side, one per lane: the sums of the search need no reduction across a vector, and its scalar
// steps serve all rows at once. Worth it where a row is too short for packing its candidates to pay.

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

// Turns the rows into columns[j], which holds entry j of every row; past the end of the rows stand minus infinities.
template <class T> void load_columns(const Member<T>* rows, int64_t n, Vec<T>* columns) {
    for (int64_t j = 0; j < n; j += kLanes<T>) {
        Vec<T>* block = columns + j;
        for (int row = 0; row < kLanes<T>; ++row) block[row] = load_up_to(rows[row].x + j, n - j, -kInfinity<T>);
        transpose<T>(block);
    }
}

template <class T> void store_columns(const Member<T>* rows, int64_t n, Vec<T>* columns) {
    for (int64_t j = 0; j < n; j += kLanes<T>) {
        Vec<T>* block = columns + j;
        transpose<T>(block);
        for (int row = 0; row < kLanes<T>; ++row) store_up_to(rows[row].out + j, block[row], n - j);
    }
}

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

// As `solve` for one row, but lane by lane, until every row but those in `skip` is done.
template <class T, class Power> void solve_columns(Power& power, const Vec<T>* z, int64_t count, Mask<T> skip) {
    power.at.set_lanes(power.start());
    const Vec<T> limit = power.limit(static_cast<double>(count)), curvature = power.curvature();
    Vec<T> settled = {};
    bool is_rough = Power::has_rough;
    for (int step = 0; step < 50; ++step) {
        const Terms<T> s = is_rough ? evaluate_columns<Power::has_rough, T>(power, z, count)
                                    : evaluate_columns<false, T>(power, z, count);
        const Vec<T> gain = power.gain(s.prob);
        const Vec<T> newton = s.prob / s.slope * gain;
        const Vec<T> bend = curvature * gain * (s.prob * s.bend / (s.slope * s.slope) - 1);
        const Vec<T> halley = newton / (1 - (bend < T(0.5) ? bend : splat<T>(0.5)));
        const Vec<T> room = limit - power.at.high;
        power.at.move(halley < room ? halley : room);
        const Vec<T> excess = s.prob - 1;
        const T tolerance = static_cast<T>(power.tolerance);
        const Mask<T> done = Power::is_linear ? s.slope == settled : (excess <= tolerance) & (excess >= -tolerance);
        if (!is_rough && !any<T>(~(done | skip))) break;
        if (!any<T>((s.prob > T(power.rough_until)) & ~skip)) is_rough = false;
        settled = s.slope;
    }
}

template <class T, class Power> void entmax_columns(const Member<T>* rows, int64_t n, Vec<T>* columns) {
    const int64_t count = (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
    load_columns(rows, n, columns);
    Vec<T> top = splat(-kInfinity<T>), exponent;
    Mask<T> nan = {};
    for (int64_t j = 0; j < count; ++j) {
        top = columns[j] > top ? columns[j] : top;
        nan |= columns[j] != columns[j];
    }
    const Mask<T> hopeless = nan | (top == kInfinity<T>), empty = (top == -kInfinity<T>) & ~hopeless;
    top = hopeless | empty ? Vec<T>{} : top;
    for (int64_t j = 0; j < count; ++j) columns[j] -= top;
    for (int row = 0; row < kLanes<T>; ++row) exponent[row] = static_cast<T>(rows[row].alpha - 1);
    Power power(exponent);
    solve_columns<T>(power, columns, count, hopeless | empty);
    const Vec<T> not_a_number = splat(std::numeric_limits<T>::quiet_NaN());
    Vec<T> expected = {};
    for (int64_t j = 0; j < count; ++j) {
        const Vec<T> z = columns[j];
        const Vec<T> p = hopeless ? not_a_number : empty ? Vec<T>{} : power.prob(z);
        expected += p > 0 ? p * z : Vec<T>{};
        columns[j] = p;
    }
    store_columns(rows, n, columns);
    for (int row = 0; row < kLanes<T>; ++row) {
        if (!rows[row].conjugate) continue;
        const double at = double(power.at.high[row]) + double(power.at.low[row]);
        const double a = rows[row].alpha - 1, lambda = at - double(power.start()[row]);
        const double value = empty[row] ? 0 : (a * expected[row] + lambda) / rows[row].alpha;
        *rows[row].conjugate = hopeless[row] ? not_a_number[row] : static_cast<T>(value);
    }
}

template <class T> void entmax_columns_of(Kind kind, const Member<T>* rows, int64_t n, Vec<T>* columns) {
    switch (kind) {
        case Kind::kLinear: return entmax_columns<T, Linear<T>>(rows, n, columns);
        case Kind::kSquare: return entmax_columns<T, Square<T>>(rows, n, columns);
        case Kind::kRoot: return entmax_columns<T, Root<T>>(rows, n, columns);
        case Kind::kNearExponential: return entmax_columns<T, NearExponential<T>>(rows, n, columns);
        default: break;
    }
}

// Rows travel together with rows of the same kind, and of an alpha that takes as many steps. A few that do not fill a vector,
// and the kinds with a search of their own, go alone.
template <class T, class RowAt>
void short_rows(int64_t first, int64_t last, int64_t n, const RowAt& row_at, Vec<T>* columns) {
    struct Company {
        Kind kind;
        int count = 0;
        Member<T> members[kLanes<T>] = {};
    };
    Company companies[] = {{Kind::kNearExponential}, {Kind::kRoot}, {Kind::kRoot}, {Kind::kRoot}, {Kind::kSquare}, {Kind::kLinear}};
    const auto company_of = [&](double a) -> Company* {
        switch (kind_of(a)) {
            case Kind::kNearExponential: return companies;
            case Kind::kRoot: return companies + (a < 0.4 ? 1 : a < 0.75 ? 2 : 3);
            case Kind::kSquare: return companies + 4;
            case Kind::kLinear: return companies + 5;
            default: return nullptr;
        }
    };
    const auto alone = [&](const Member<T>& m) {
        long_row(m.x, m.alpha, m.out, m.conjugate, n, reinterpret_cast<T*>(columns));
    };
    for (int64_t row = first; row < last; ++row) {
        const Member<T> member = row_at(row);
        Company* company = company_of(member.alpha - 1);
        if (!company) {
            alone(member);
            continue;
        }
        company->members[company->count++] = member;
        if (company->count < kLanes<T>) continue;
        entmax_columns_of(company->kind, company->members, n, columns);
        company->count = 0;
    }
    for (Company& company : companies) {
        if (company.count > kLanes<T> / 4) {
            // The last one fills the empty lanes: the same answer, written again.
            for (int i = company.count; i < kLanes<T>; ++i) company.members[i] = company.members[company.count - 1];
            entmax_columns_of(company.kind, company.members, n, columns);
        } else {
            for (int i = 0; i < company.count; ++i) alone(company.members[i]);
        }
    }
}

}  // namespace anymax
