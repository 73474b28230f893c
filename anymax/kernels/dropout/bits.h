// The random bits of dropout, a hash of the seed and of an entry's number, defined in reference.py.

#pragma once

#include <cstdint>

#include "vector.h"

namespace anymax {

constexpr uint32_t kHashStep = 0x9e3779b9;

// The hash of the entries whose numbers agree in all but their low 32 bits.
struct Hash {
    uint32_t first, second;
    // From number `word` of the generator SplitMix64.
    Hash(int64_t seed, int64_t word) {
        uint64_t z = uint64_t(seed) + (uint64_t(word) + 1) * 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        z ^= z >> 31;
        first = uint32_t(z);
        second = uint32_t(z >> 32);
    }
    uint32_t start(uint32_t number) const { return first + number * kHashStep; }
    ANYMAX_INLINE uint32_t bits(uint32_t start) const {
        const uint32_t x = ((start ^ start >> 16) * 0x7feb352du) ^ second;
        return (x ^ x >> 14) * 0x846ca68bu;
    }
};

template <class T> struct Rule {
    uint32_t threshold;
    T scale;
};

// Entries number `number` and up; `out` may be the entries themselves.
template <class T>
void drop(const T* x, T* out, int64_t count, int64_t seed, int64_t number, Rule<T> rule) {
    const Hash hash(seed, number >> 32);
    uint32_t start = hash.start(uint32_t(number));
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i, start += kHashStep) {
        const T scaled = x[i] * rule.scale;
        out[i] = hash.bits(start) >= rule.threshold ? scaled : T(0);
    }
}

// The entries of a row whose numbers are listed, below 2^32.
template <class T>
void drop_listed(const T* x, const int32_t* numbers, T* out, int64_t count, int64_t seed, Rule<T> rule) {
    const Hash hash(seed, 0);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
        const T scaled = x[i] * rule.scale;
        out[i] = hash.bits(hash.start(uint32_t(numbers[i]))) >= rule.threshold ? scaled : T(0);
    }
}

}  // namespace anymax
