// Lists of a row's chosen keys, and their products with rows of numbers: what is not listed costs nothing.
//
// Rows of numbers are padded to whole tiles of columns, so that vectors never end inside of one.

#pragma once

#include "matmul/panels.h"

namespace anymax {

// Calls visit(first vector, number of vectors as a constant) for parts of a row that fit the registers.
template <class Visit> ANYMAX_INLINE void for_vectors(int64_t num_vectors, const Visit& visit) {
    constexpr int kMost = 2 * kVectors;
    static_assert(kVectors == 2);
    int64_t at = 0;
    for (; at + kMost <= num_vectors; at += kMost) visit(at, std::integral_constant<int, kMost>{});
    if (at < num_vectors) visit(at, std::integral_constant<int, kVectors>{});
}

// In place of the numbers of a list, where all rows take part.
struct AllNumbers {
    int64_t operator[](int64_t i) const { return i; }
};

// out = sum over the list of weight times row. Rows are `stride` apart.
template <class T, class Numbers>
void gather(const T* weights, const Numbers& numbers, int64_t count, const T* rows, int64_t stride, int64_t width, T* out) {
    for_vectors(width / kLanes<T>, [&](int64_t first, auto num) {
        constexpr int kNum = num;
        const T* from = rows + first * kLanes<T>;
        // Two chains of sums: shorter waits.
        Vec<T> even[kNum] = {}, odd[kNum] = {};
        int64_t i = 0;
        for (; i + 2 <= count; i += 2) {
            const T *one = from + numbers[i] * stride, *other = from + numbers[i + 1] * stride;
            for (int k = 0; k < kNum; ++k) {
                even[k] += weights[i] * load(one + k * kLanes<T>);
                odd[k] += weights[i + 1] * load(other + k * kLanes<T>);
            }
        }
        if (i < count)
            for (int k = 0; k < kNum; ++k) even[k] += weights[i] * load(from + numbers[i] * stride + k * kLanes<T>);
        for (int k = 0; k < kNum; ++k) store(out + (first + k) * kLanes<T>, even[k] + odd[k]);
    });
}

// The reverse: adds weight times x to each listed row.
template <class T>
void spread(const T* weights, const int32_t* numbers, int64_t count, const T* x, T* rows, int64_t width) {
    for_vectors(width / kLanes<T>, [&](int64_t first, auto num) {
        constexpr int kNum = num;
        Vec<T> part[kNum];
        for (int k = 0; k < kNum; ++k) part[k] = load(x + (first + k) * kLanes<T>);
        T* to = rows + first * kLanes<T>;
        for (int64_t i = 0; i < count; ++i)
            for (int k = 0; k < kNum; ++k) {
                T* at = to + numbers[i] * width + k * kLanes<T>;
                store(at, load(at) + weights[i] * part[k]);
            }
    });
}

// The lanes of each of as many vectors as a vector has lanes, summed: lane i of the result is the sum of vector i. Vectors are
// interleaved and added, which leaves their sums in the order of reversed bits.
template <class T> ANYMAX_INLINE int reversed_bits(int i) {
    int reversed = 0;
    for (int bit = 1; bit < kLanes<T>; bit *= 2) reversed = 2 * reversed + ((i & bit) != 0);
    return reversed;
}
template <class T> ANYMAX_INLINE Vec<T> sum_each(Vec<T>* v) {
    using Lanes = std::make_integer_sequence<int, kLanes<T>>;
    for (int left = kLanes<T>; left > 1; left /= 2)
        for (int i = 0; i < left / 2; ++i)
            v[i] = interleave_low(v[2 * i], v[2 * i + 1], Lanes{}) + interleave_high(v[2 * i], v[2 * i + 1], Lanes{});
    return v[0];
}

// out[i] = <x, listed row i>; `out` has room for whole vectors.
template <class T, class Numbers>
void dot_products(const T* x, const T* rows, int64_t stride, int64_t width, const Numbers& numbers, int64_t count, T* out) {
    if (count == 0) return;
    for_vectors(width / kLanes<T>, [&](int64_t first, auto num) {
        constexpr int kNum = num;
        Vec<T> part[kNum];
        for (int k = 0; k < kNum; ++k) part[k] = load(x + (first + k) * kLanes<T>);
        const T* from = rows + first * kLanes<T>;
        for (int64_t i = 0; i < count; i += kLanes<T>) {
            Vec<T> products[kLanes<T>];
            for (int lane = 0; lane < kLanes<T>; ++lane) {
                const T* row = from + numbers[std::min(i + lane, count - 1)] * stride;
                Vec<T> product = load(row) * part[0];
                for (int k = 1; k < kNum; ++k) product += load(row + k * kLanes<T>) * part[k];
                products[reversed_bits<T>(lane)] = product;
            }
            const Vec<T> sums = sum_each<T>(products);
            store(out + i, first ? load(out + i) + sums : sums);
        }
    });
}

// Numbers of lanes beside the entries that `keep` names, as `pack` does.
template <class T> ANYMAX_INLINE void pack_numbers(int32_t* to, Vec<int32_t> numbers, Mask<T> keep) {
    if constexpr (sizeof(T) == sizeof(int32_t)) {
        pack<float>(reinterpret_cast<float*>(to), (Vec<float>)numbers, keep);
    } else {
        int kept = 0;
        for (int lane = 0; lane < kLanes<T>; ++lane)
            if (keep[lane]) to[kept++] = numbers[lane];
    }
}

// Packs the entries that `keep` chooses, with their numbers; returns how many. `entries` may be the row itself. Both may be
// written a vector beyond.
template <class T, class Keep> int64_t pack_numbered(const T* x, int64_t n, T* entries, int32_t* numbers, const Keep& keep) {
    Vec<int32_t> lanes;
    for (int lane = 0; lane < kLanes<int32_t>; ++lane) lanes[lane] = lane;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += kLanes<T>) {
        const Vec<T> v = load_up_to(x + i, n - i, -kInfinity<T>);
        const Mask<T> is_kept = keep(v);
        if (!any<T>(is_kept)) continue;
        pack_numbers<T>(numbers + count, lanes + int32_t(i), is_kept);
        count += pack<T>(entries + count, v, is_kept);
    }
    return count;
}

// Of packed entries and their numbers, keeps those above zero; returns how many.
template <class T> int64_t keep_positive(T* entries, int32_t* numbers, int64_t count) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += kLanes<T>) {
        const Vec<T> v = load_up_to(entries + i, count - i, T(0));
        const Vec<int32_t> there = load(numbers + i);
        const Mask<T> is_positive = v > 0;
        pack_numbers<T>(numbers + kept, there, is_positive);
        kept += pack<T>(entries + kept, v, is_positive);
    }
    return kept;
}

}  // namespace anymax
