// What a block of rows of scores chooses: each row becomes probabilities, and a block whose rows choose little becomes lists.
//
// A list stands in its row: probabilities at the front, and the numbers of the keys in a row of their own.

#pragma once

#include "attention/lists.h"
#include "entmax/short_rows.h"

namespace anymax {

// In place of a count: the row is not listed.
constexpr int64_t kWhole = -1;

// Up to this share of a block's entries, lists cost less than whole products; measured.
constexpr double kListedForward = 0.35, kListedBackward = 0.17;

template <class T> struct Block {
    int64_t rows, stride;
    double alpha;
    // Of each row: its scores, then its probabilities; how many scores there are, how many probabilities are listed; and
    // lambda for the scores as they are.
    T* entries;
    int32_t* numbers;
    int64_t* lengths;
    int64_t* counts;
    T* shifts;
    // `choice_scratch` numbers.
    T* scratch;
    double listed_share;

    T* row(int64_t r) const { return entries + r * stride; }
    int32_t* numbers_of(int64_t r) const { return numbers + r * stride; }
};

// Rows end in room for the score of a sink, and for what vectors write too much.
template <class T> int64_t stride_of_rows(int64_t n) {
    return (n + 2 * kLanes<T> + kColumns<T>) / kColumns<T> * kColumns<T>;
}
template <class T> int64_t choice_scratch(int64_t stride) {
    return std::max(2 * stride + 4 * kLanes<T>, short_rows_scratch<T>(std::min(stride, kShortRow<T>)));
}

template <class T> int64_t count_positive(const T* p, int64_t n) {
    Mask<T> counts = {};
    int64_t i = 0, count = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) counts -= load(p + i) > 0;
    for (; i < n; ++i) count += p[i] > 0;
    for (int lane = 0; lane < kLanes<T>; ++lane) count += counts[lane];
    return count;
}

template <class T> void make_list(const Block<T>& block, int64_t r) {
    if (block.counts[r] != kWhole) return;
    T* x = block.row(r);
    block.counts[r] = pack_numbered(x, block.lengths[r], x, block.numbers_of(r), [](Vec<T> v) { return v > 0; });
}

template <class T> void unmake_list(const Block<T>& block, int64_t r) {
    if (block.counts[r] == kWhole) return;
    T* x = block.row(r);
    std::copy(x, x + block.counts[r], block.scratch);
    std::fill(x, x + block.lengths[r], T(0));
    for (int64_t i = 0; i < block.counts[r]; ++i) x[block.numbers_of(r)[i]] = block.scratch[i];
    block.counts[r] = kWhole;
}

// Makes all rows lists, or none of them; returns whether they are. NaN is in no list.
template <class T> bool settle_on_lists(const Block<T>& block) {
    const bool is_sparse = block.alpha > 1;
    int64_t listed = 0, all = 0;
    bool has_nan = false;
    for (int64_t r = 0; r < block.rows && is_sparse; ++r) {
        all += block.lengths[r];
        listed += block.counts[r] == kWhole ? count_positive(block.row(r), block.lengths[r]) : block.counts[r];
        has_nan |= block.shifts[r] != block.shifts[r];
    }
    const bool is_listed = is_sparse && !has_nan && listed <= block.listed_share * all;
    for (int64_t r = 0; r < block.rows; ++r) is_listed ? make_list(block, r) : unmake_list(block, r);
    return is_listed;
}

// Candidates are packed with their numbers, so that a row which chooses few of them is a list at once.
template <class T, class Power> void choose_in_row(const Block<T>& block, int64_t r, Power power, T top) {
    T* x = block.row(r);
    const int64_t n = block.lengths[r];
    T *candidates = block.scratch, *searched = candidates + block.stride + 2 * kLanes<T>;
    const T lowest = lowest_candidate(power, top);
    const int64_t count = pack_numbered(x, n, candidates, block.numbers_of(r), [=](Vec<T> v) { return v >= lowest; });
    for (int64_t i = 0; i < count; i += kLanes<T>) {
        const Vec<T> z = load(candidates + i) - top;
        store(candidates + i, z);
        store(searched + i, z);
    }
    pad(searched, count);
    const double at = solve(power, searched, count);
    block.shifts[r] = shift_of<T>(double(top), {0, at - double(power.start()[0])});
    if (count > 2 * block.listed_share * n) {
        write_probs(power, at, x, x, n, top, false);
        block.counts[r] = kWhole;
        return;
    }
    for (int64_t i = 0; i < count; i += kLanes<T>) store(x + i, power.prob(load(candidates + i)));
    block.counts[r] = keep_positive(x, block.numbers_of(r), count);
}

// Rows of scores become probabilities, whole or listed, and their shifts are noted.
template <class T> void choose(const Block<T>& block) {
    const double a = block.alpha - 1;
    const bool has_candidates = a > 0 && kind_of(a) != Kind::kSteep;
    const int64_t longest = *std::max_element(block.lengths, block.lengths + block.rows);
    std::fill(block.counts, block.counts + block.rows, kWhole);
    if (longest == 0) {
        std::fill(block.shifts, block.shifts + block.rows, kInfinity<T>);
        return;
    }
    if (longest <= kShortRow<T>) {
        for (int64_t r = 0; r < block.rows; ++r)
            std::fill(block.row(r) + block.lengths[r], block.row(r) + std::max(block.lengths[r], longest), -kInfinity<T>);
        short_rows<T>(0, block.rows, longest, [&](int64_t r) {
            return Member<T>{block.row(r), block.row(r), nullptr, block.alpha, block.shifts + r};
        }, block.scratch);
        return;
    }
    for (int64_t r = 0; r < block.rows; ++r) {
        T* x = block.row(r);
        if (!has_candidates) {
            long_row(x, block.alpha, x, static_cast<T*>(nullptr), block.lengths[r], block.scratch, block.shifts + r);
            continue;
        }
        const Row row = scan(x, block.lengths[r]);
        if (settle_without_search(row, x, static_cast<T*>(nullptr), block.shifts + r, block.lengths[r])) continue;
        with_power<T>(a, [&](auto power) { choose_in_row(block, r, power, static_cast<T>(row.top)); });
    }
}

template <class T, class Power> void choose_again_in_row(const Block<T>& block, int64_t r, Power power) {
    T* x = block.row(r);
    const int64_t n = block.lengths[r];
    const double at = double(block.shifts[r]) + double(power.start()[0]);
    power.at.set(at);
    int64_t count = n;
    if constexpr (!kIsHeavy<Power>) {
        const T lowest = static_cast<T>(power.threshold(at));
        count = pack_numbered(x, n, block.scratch, block.numbers_of(r), [=](Vec<T> v) { return v > lowest; });
    }
    if (count > 2 * block.listed_share * n) {
        for (int64_t i = 0; i < n; i += kLanes<T>) store_up_to(x + i, power.prob(load_up_to(x + i, n - i, -kInfinity<T>)), n - i);
        return;
    }
    for (int64_t i = 0; i < count; i += kLanes<T>) store(x + i, power.prob(load(block.scratch + i)));
    block.counts[r] = keep_positive(x, block.numbers_of(r), count);
}

// As `choose`, where the shifts are known.
template <class T> void choose_again(const Block<T>& block) {
    const double a = block.alpha - 1;
    std::fill(block.counts, block.counts + block.rows, kWhole);
    for (int64_t r = 0; r < block.rows; ++r) {
        T* x = block.row(r);
        const int64_t n = block.lengths[r];
        const T shift = block.shifts[r];
        if (shift != shift || std::isinf(shift)) {
            std::fill(x, x + n, std::isinf(shift) ? T(0) : shift);
        } else if (kind_of(a) == Kind::kSoftmax) {
            for (int64_t i = 0; i < n; i += kLanes<T>)
                store_up_to(x + i, exponential(load_up_to(x + i, n - i, -kInfinity<T>) - shift), n - i);
        } else if (kind_of(a) == Kind::kSteep) {
            // Where powers are steep a shift in T says too little.
            long_row(x, block.alpha, x, static_cast<T*>(nullptr), n, block.scratch);
        } else {
            with_power<T>(a, [&](auto power) { choose_again_in_row(block, r, power); });
        }
    }
}

}  // namespace anymax
