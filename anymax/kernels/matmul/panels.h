// Tiles of a product of matrices, as large as the registers hold, and panels that they read straight on: kRows rows of A or
// kColumns columns of B, with the entries of one k side by side.

#pragma once

#include "half.h"
#include "rows.h"
#include "vector.h"

namespace anymax {

// With two vectors of B and one number of A they fill 32 registers, or 16.
constexpr int kRows = kVectorBytes == 64 ? 14 : 6;
constexpr int kVectors = 2;
template <class T> constexpr int kColumns = kVectors * kLanes<T>;
// How much of K is packed at a time: so much of a panel of B fits the first cache.
constexpr int64_t kDepth = 256;
// What an operand is stored in.
enum Stored { kAsComputed, kFloat16, kBFloat16 };

// A as rows, or B as columns, of `count` vectors along k.
struct Operand {
    const void* data;
    int stored;
    int64_t count;
    // From one vector to the next, and from one k to the next; one of them is 1.
    int64_t step, step_k;
};

template <class S> ANYMAX_INLINE Vec<Wide<S>> load_wide_up_to(const S* from, int64_t count) {
    using T = Wide<S>;
    if constexpr (!kIsHalf<S>) return load_up_to(from, count, T(0));
    else {
        T lanes[kLanes<T>] = {};
        if (count >= kLanes<T>) widen(from, lanes, kLanes<T>);
        else widen(from, lanes, count);
        return load(lanes);
    }
}

template <int kWidth, class S> void pack_stored(const Operand& operand, int64_t first, int64_t from, int64_t to, Wide<S>* packed) {
    using T = Wide<S>;
    const int64_t width = std::min<int64_t>(kWidth, operand.count - first);
    const S* data = static_cast<const S*>(operand.data) + first * operand.step;
    constexpr int kGroups = (kWidth + kLanes<T> - 1) / kLanes<T>;
    if (operand.step == 1) {
        for (int64_t k = from; k < to; ++k, packed += kWidth)
            for (int group = 0; group < kGroups; ++group) {
                const int64_t at = group * kLanes<T>;
                const Vec<T> v = load_wide_up_to(data + k * operand.step_k + at, std::max<int64_t>(0, width - at));
                store_up_to(packed + at, v, kWidth - at);
            }
        return;
    }
    for (int64_t k = from; k < to; k += kLanes<T>) {
        const int count = static_cast<int>(std::min<int64_t>(kLanes<T>, to - k));
        Vec<T> square[kGroups][kLanes<T>];
        for (int i = 0; i < kGroups * kLanes<T>; ++i)
            square[i / kLanes<T>][i % kLanes<T>] = i < width ? load_wide_up_to(data + i * operand.step + k, count) : Vec<T>{};
        for (auto& each : square) transpose<T>(each);
        // In the order of the addresses: what a vector writes too much is written again, but for the last.
        for (int j = 0; j < count; ++j, packed += kWidth)
            for (int group = 0; group < kGroups; ++group) {
                if (k + j + 1 < to) store(packed + group * kLanes<T>, square[group][j]);
                else store_up_to(packed + group * kLanes<T>, square[group][j], kWidth - group * kLanes<T>);
            }
    }
}

// Panel `panel` of an operand for k from `from` to `to`, with zeros beyond the last vector.
template <int kWidth, class T> void pack_panel(const Operand& operand, int64_t panel, int64_t from, int64_t to, T* packed) {
    if constexpr (sizeof(T) == 4) {
        if (operand.stored == kFloat16) return pack_stored<kWidth, Float16>(operand, panel * kWidth, from, to, packed);
        if (operand.stored == kBFloat16) return pack_stored<kWidth, BFloat16>(operand, panel * kWidth, from, to, packed);
    }
    pack_stored<kWidth, T>(operand, panel * kWidth, from, to, packed);
}

template <class T> constexpr int64_t num_panels(int64_t count, int64_t width) { return (count + width - 1) / width; }

template <class T> struct Result {
    T* data;
    int64_t stride, rows, columns;
    // What the columns begin with, or null.
    const T* bias;
    bool adds;
};

// The tile of C at (row, column): the sum over k of kRows numbers of A times kColumns of B, side by side, the next ones
// `a_step` and `b_step` further. Every one after the first part of K adds.
template <class T>
ANYMAX_INLINE void multiply_tile(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t depth, const Result<T>& c,
                                 int64_t row, int64_t column, bool adds) {
    Vec<T> sums[kRows][kVectors] = {};
    for (int64_t k = 0; k < depth; ++k, a += a_step, b += b_step) {
        const Vec<T> b0 = load(b), b1 = load(b + kLanes<T>);
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
            sums[i][0] += a[i] * b0;
            sums[i][1] += a[i] * b1;
        }
    }
    const int64_t num_rows = std::min<int64_t>(kRows, c.rows - row), width = c.columns - column;
    if (num_rows == kRows && width >= kColumns<T>) {
        Vec<T> first[kVectors] = {};
        if (!adds && c.bias)
            for (int j = 0; j < kVectors; ++j) first[j] = load(c.bias + column + j * kLanes<T>);
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
            T* to = c.data + (row + i) * c.stride + column;
            for (int j = 0; j < kVectors; ++j)
                store(to + j * kLanes<T>, sums[i][j] + (adds ? load(to + j * kLanes<T>) : first[j]));
        }
        return;
    }
    T entries[kRows][kColumns<T>];
    std::memcpy(entries, sums, sizeof sums);
    for (int64_t i = 0; i < num_rows; ++i) {
        T* to = c.data + (row + i) * c.stride + column;
        for (int64_t j = 0; j < std::min<int64_t>(width, kColumns<T>); ++j)
            to[j] = entries[i][j] + (adds ? to[j] : c.bias ? c.bias[column + j] : T(0));
    }
}

}  // namespace anymax
