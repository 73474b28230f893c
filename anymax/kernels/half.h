// Half precision: a kernel widens what it reads to float in its scratch space, and rounds what it writes, once, to even.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace anymax {

struct Float16 {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

// What stored numbers are computed in.
template <class S> struct WideOf {
    using Type = S;
};
template <> struct WideOf<Float16> {
    using Type = float;
};
template <> struct WideOf<BFloat16> {
    using Type = float;
};
template <class S> using Wide = typename WideOf<S>::Type;
template <class S> constexpr bool kIsHalf = !std::is_same_v<S, Wide<S>>;

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float widened(BFloat16 h) { return float_of(uint32_t(h.bits) << 16); }

inline BFloat16 rounded(float x, BFloat16) {
    const uint32_t bits = bits_of(x);
    const uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return {uint16_t((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : nearest)};
}

// Without denormal floats on the way, which a processor may be told to take as zero.
inline float widened(Float16 h) {
    constexpr uint32_t kBias = (127 - 15) << 23;
    const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, shifted = uint32_t(h.bits & 0x7fff) << 13;
    const uint32_t exponent = shifted & 0x0f800000;
    const uint32_t normal = shifted + kBias, infinite = normal + kBias;
    const uint32_t denormal = bits_of(float_of(normal + (1 << 23)) - float_of(kBias + (1 << 23)));
    return float_of(sign | (exponent == 0 ? denormal : exponent == 0x0f800000 ? infinite : normal));
}

inline Float16 rounded(float x, Float16) {
    constexpr uint32_t kBias = (127 - 15) << 23, kTooLarge = (127 + 16) << 23, kNormal = (127 - 14) << 23;
    // Added to a number below the normal ones, it leaves the digits of the result at the end.
    constexpr uint32_t kMagic = (127 - 15 + 23 - 10 + 1) << 23;
    const uint32_t sign = bits_of(x) >> 16 & 0x8000, size = bits_of(x) & 0x7fffffff;
    const uint32_t special = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t denormal = bits_of(float_of(size) + float_of(kMagic)) - kMagic;
    const uint32_t normal = (size - kBias + 0xfff + (size >> 13 & 1)) >> 13;
    return {uint16_t(sign | (size >= kTooLarge ? special : size < kNormal ? denormal : normal))};
}

template <class S> void widen(const S* from, float* to, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<S, Float16>)
        for (; i + 8 <= count; i += 8) _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i))));
#endif
    for (; i < count; ++i) to[i] = widened(from[i]);
}

template <class S> void narrow(const float* from, S* to, int64_t count) {
    int64_t i = 0;
#if defined(__F16C__)
    if constexpr (std::is_same_v<S, Float16>)
        for (; i + 8 <= count; i += 8)
            _mm_storeu_si128((__m128i*)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; ++i) to[i] = rounded(from[i], S{});
}

}  // namespace anymax
