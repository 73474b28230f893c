// Vectors of the widest kind the instruction level has, and the few functions on them that the kernels need.
//
// Built on the compilers' vector extensions, so one source serves SSE2, AVX2, AVX-512 and NEON; only `any`, `pack` (keep the
// chosen lanes, in order), and what AVX-512 has a single instruction for name instructions (with
// a mask of all lanes, where the plain form warns of a variable that GCC leaves unset). A polynomial's coefficients are minimax fits of ours.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The forms that glibc has always had: the newer ones of 2.29, which a compiler takes by itself, differ in errno alone and
// would keep a built library from systems that torch still serves.
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__ILP32__)
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif

#define ANYMAX_EXPORT extern "C" __attribute__((visibility("default")))
#define ANYMAX_INLINE inline __attribute__((always_inline))

namespace anymax {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T> struct VectorOf;
template <> struct VectorOf<float> {
    typedef float Type __attribute__((vector_size(kVectorBytes)));
    typedef int32_t Mask __attribute__((vector_size(kVectorBytes)));
};
template <> struct VectorOf<int32_t> {
    typedef int32_t Type __attribute__((vector_size(kVectorBytes)));
    typedef int32_t Mask __attribute__((vector_size(kVectorBytes)));
};
template <> struct VectorOf<double> {
    typedef double Type __attribute__((vector_size(kVectorBytes)));
    typedef int64_t Mask __attribute__((vector_size(kVectorBytes)));
};
template <class T> using Vec = typename VectorOf<T>::Type;
template <class T> using Mask = typename VectorOf<T>::Mask;
template <class T> constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T> constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <class T> ANYMAX_INLINE Vec<T> load(const T* from) {
    Vec<T> v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class T> ANYMAX_INLINE void store(T* to, Vec<T> v) { std::memcpy(to, &v, sizeof v); }

// Up to `count` entries, which may be more than fit, and `fill` in the lanes that are left.
template <class T> ANYMAX_INLINE Vec<T> load_up_to(const T* from, int64_t count, T fill) {
    if (count >= kLanes<T>) return load(from);
    T lanes[kLanes<T>];
    for (int i = 0; i < kLanes<T>; ++i) lanes[i] = i < count ? from[i] : fill;
    return load(lanes);
}

template <class T> ANYMAX_INLINE void store_up_to(T* to, Vec<T> v, int64_t count) {
    if (count >= kLanes<T>) return store(to, v);
    std::memcpy(to, &v, count * sizeof(T));
}

template <class T> ANYMAX_INLINE Vec<T> splat(T x) { return Vec<T>{} + x; }

// The larger of two; where `v` is NaN, `low`. Compilers find the instruction for it everywhere but in AVX-512.
template <class T> ANYMAX_INLINE Vec<T> at_least(Vec<T> v, Vec<T> low) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return (Vec<T>)_mm512_maskz_max_ps(0xffff, (__m512)v, (__m512)low);
    else return (Vec<T>)_mm512_maskz_max_pd(0xff, (__m512d)v, (__m512d)low);
#else
    return v > low ? v : low;
#endif
}

// Lane i of the result is lane i + distance; the last ones repeat others.
template <int distance, class V, int... lane> ANYMAX_INLINE V lanes_from(V v, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(v, v, (lane + distance)...);
}

// Halves are folded onto each other until one lane is left.
template <class T, int half = kLanes<T> / 2, class Fold> ANYMAX_INLINE T fold_lanes(Vec<T> v, const Fold& fold) {
    if constexpr (half == 0) return v[0];
    else return fold_lanes<T, half / 2>(fold(v, lanes_from<half>(v, std::make_integer_sequence<int, kLanes<T>>{})), fold);
}

template <class T> ANYMAX_INLINE T sum(Vec<T> v) {
    return fold_lanes<T>(v, [](Vec<T> a, Vec<T> b) { return a + b; });
}

template <class T> ANYMAX_INLINE T maximum(Vec<T> v) {
    return fold_lanes<T>(v, at_least<T>);
}

// One bit per lane.
template <class T> ANYMAX_INLINE unsigned bits(Mask<T> m) {
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) return _mm512_movepi32_mask((__m512i)m);
    else return _mm512_movepi64_mask((__m512i)m);
#elif defined(__AVX2__)
    if constexpr (sizeof(T) == 4) return _mm256_movemask_ps((__m256)m);
    else return _mm256_movemask_pd((__m256d)m);
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 4) return _mm_movemask_ps((__m128)m);
    else return _mm_movemask_pd((__m128d)m);
#else
    unsigned result = 0;
    for (int i = 0; i < kLanes<T>; ++i) result |= unsigned(m[i] != 0) << i;
    return result;
#endif
}

template <class T> ANYMAX_INLINE bool any(Mask<T> m) { return bits<T>(m) != 0; }

#if defined(__AVX2__) && !defined(__AVX512F__)
// For every choice of 8 lanes, where each kept lane comes from.
struct PackTable {
    alignas(32) int32_t of_eight[256][8] = {};
    constexpr PackTable() {
        for (int chosen = 0; chosen < 256; ++chosen) {
            int kept = 0;
            for (int lane = 0; lane < 8; ++lane)
                if (chosen >> lane & 1) of_eight[chosen][kept++] = lane;
        }
    }
};
inline constexpr PackTable kPackTable;
#endif

// Stores the lanes of `v` that `keep` names side by side and returns how many; may write a whole vector.
template <class T> ANYMAX_INLINE int pack(T* to, Vec<T> v, Mask<T> keep) {
    const unsigned chosen = bits<T>(keep);
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 4) _mm512_storeu_ps(to, _mm512_maskz_compress_ps((__mmask16)chosen, (__m512)v));
    else _mm512_storeu_pd(to, _mm512_maskz_compress_pd((__mmask8)chosen, (__m512d)v));
#elif defined(__AVX2__)
    unsigned eighths = chosen;
    // A double is two of the eight lanes: spread each of the four bits over two.
    if constexpr (sizeof(T) == 8) eighths = _pdep_u32(chosen, 0x55u) * 3u;
    const __m256i from = _mm256_load_si256((const __m256i*)kPackTable.of_eight[eighths]);
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32((__m256i)v, from));
#else
    int kept = 0;
    for (int i = 0; i < kLanes<T>; ++i)
        if (chosen >> i & 1) to[kept++] = v[i];
#endif
    return __builtin_popcount(chosen);
}

template <class V, int... lane> ANYMAX_INLINE V interleave_low(V a, V b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (lane / 2 + lane % 2 * int(sizeof...(lane)))...);
}
template <class V, int... lane> ANYMAX_INLINE V interleave_high(V a, V b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, ((lane + int(sizeof...(lane))) / 2 + lane % 2 * int(sizeof...(lane)))...);
}

// A group of vectors that is looked at, skipped or worked on together: fewer branches, and fewer wrong guesses.
constexpr int kGroup = 4;

template <class T> struct Group {
    Vec<T> v[kGroup];
    static Group load_up_to(const T* from, int64_t count, T fill) {
        Group group;
        if (count >= kGroup * kLanes<T>)
            for (int k = 0; k < kGroup; ++k) group.v[k] = load(from + k * kLanes<T>);
        else
            for (int k = 0; k < kGroup; ++k) group.v[k] = anymax::load_up_to(from + k * kLanes<T>, count - k * kLanes<T>, fill);
        return group;
    }
    void store_up_to(T* to, int64_t count) const {
        if (count >= kGroup * kLanes<T>)
            for (int k = 0; k < kGroup; ++k) store(to + k * kLanes<T>, v[k]);
        else
            for (int k = 0; k < kGroup && k * kLanes<T> < count; ++k)
                anymax::store_up_to(to + k * kLanes<T>, v[k], count - k * kLanes<T>);
    }
    ANYMAX_INLINE bool any_above(T threshold) const {
        Mask<T> above = v[0] > threshold;
        for (int k = 1; k < kGroup; ++k) above |= v[k] > threshold;
        return any<T>(above);
    }
};

// Transposes the square of as many vectors as a vector has lanes, by perfect shuffles.
template <class T> ANYMAX_INLINE void transpose(Vec<T>* v) {
    constexpr int kHalf = kLanes<T> / 2;
    using Lanes = std::make_integer_sequence<int, kLanes<T>>;
    for (int round = kLanes<T>; round > 1; round /= 2) {
        Vec<T> shuffled[kLanes<T>];
        for (int i = 0; i < kHalf; ++i) {
            shuffled[2 * i] = interleave_low(v[i], v[i + kHalf], Lanes{});
            shuffled[2 * i + 1] = interleave_high(v[i], v[i + kHalf], Lanes{});
        }
        for (int i = 0; i < kLanes<T>; ++i) v[i] = shuffled[i];
    }
}

ANYMAX_INLINE Vec<float> square_root(Vec<float> v) {
    for (int i = 0; i < kLanes<float>; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
}
ANYMAX_INLINE Vec<double> square_root(Vec<double> v) {
    for (int i = 0; i < kLanes<double>; ++i) v[i] = __builtin_sqrt(v[i]);
    return v;
}

// exp: x = k ln 2 + r with |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 Q(r), relative error of the fit 3e-9.
// Results below the smallest normal number are zero; arguments above 88 give the value at 88.
ANYMAX_INLINE Vec<float> exponential(Vec<float> x) {
#if defined(__AVX512F__)
    const Vec<float> bounded = (Vec<float>)_mm512_maskz_min_ps(0xffff, (__m512)splat(88.0f), (__m512)x);
    const Vec<float> k = (Vec<float>)_mm512_maskz_roundscale_ps(0xffff, (__m512)(bounded * 1.44269504f), 0);
#else
    const Vec<float> bounded = x > 88.0f ? splat(88.0f) : x;
    const Vec<float> rounder = splat(12582912.0f);
    const Vec<float> k = (bounded * 1.44269504f + rounder) - rounder;
#endif
    const Vec<float> r = (bounded - k * 0.693145752f) - k * 1.42860677e-6f;
    const Vec<float> square = r * r;
    const Vec<float> low = r * 0.166665181517601f + 0.5f, high = r * 0.00836888886988163f + 0.04166620597243309f;
    const Vec<float> q = (square * 0.0013950490392744541f + high) * square + low;
    const Vec<float> mantissa = q * square + (r + 1.0f);
#if defined(__AVX512F__)
    const __mmask16 is_normal = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-87.3f), _CMP_GT_OQ);
    return (Vec<float>)_mm512_maskz_scalef_ps(is_normal, (__m512)mantissa, (__m512)k);
#else
    const Mask<float> exponent = __builtin_convertvector(k, Mask<float>) << 23;
    const Vec<float> result = (Vec<float>)((Mask<float>)mantissa + exponent);
    return x > -87.3f ? result : splat(0.0f);
#endif
}

// log of a positive normal number: x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1,
// log(1 + f) = f - f^2 / 2 + f^3 P(f), relative error of the fit 6e-9. Both polynomials are summed in pairs: shorter waits.
ANYMAX_INLINE Vec<float> logarithm(Vec<float> x) {
    const Mask<float> raw = (Mask<float>)x;
    const Mask<float> k = (raw - 0x3f3504f3) >> 23;
    const Vec<float> f = (Vec<float>)(raw - (k << 23)) - 1.0f;
    const Vec<float> square = f * f, fourth = square * square;
    const Vec<float> p01 = f * -0.25000810623168945f + 0.33333316445350647f;
    const Vec<float> p23 = f * -0.16624554991722107f + 0.2000228613615036f;
    const Vec<float> p45 = f * -0.13128753006458282f + 0.14181192219257355f;
    const Vec<float> p67 = f * -0.07859612256288528f + 0.1288164258003235f;
    const Vec<float> p = (p67 * square + p45) * fourth + (p23 * square + p01);
    const Vec<float> power = __builtin_convertvector(k, Vec<float>);
    const Vec<float> low = p * (square * f) + (power * 1.42860677e-6f - 0.5f * square);
    return power * 0.693145752f + (low + f);
}

// b^y to within 0.05 y percent, for positive b and results from 2^-126 to 1, at less than half the cost: b = 2^k m with m in
// [1, 2), and cubics for log2(m) and 2^f.
ANYMAX_INLINE Vec<float> rough_power(Vec<float> b, Vec<float> y) {
    const Mask<float> raw = (Mask<float>)b;
    const Vec<float> m = (Vec<float>)((raw & 0x007fffff) | 0x3f800000);
    const Vec<float> k = __builtin_convertvector(raw >> 23, Vec<float>);
    const Vec<float> square = m * m;
    const Vec<float> log2 = (k - 129.1536200046539307f + m * 3.047882556915283f) +
                            (m * 0.15824845433235168f - 1.0518739223480225f) * square;
    const Vec<float> x = at_least<float>(log2 * y, splat(-126.0f));
#if defined(__AVX512F__)
    const Vec<float> f = (Vec<float>)_mm512_maskz_reduce_ps(0xffff, (__m512)x, 0), whole = x - f;
#else
    const Vec<float> rounder = splat(12582912.0f);
    const Vec<float> whole = (x + rounder) - rounder, f = x - whole;
#endif
    const Vec<float> power = (f * 0.0551716610789299f + 0.2426111251115799f) * (f * f) + (f * 0.6932609677314758f + 0.9999280571937561f);
#if defined(__AVX512F__)
    return (Vec<float>)_mm512_maskz_scalef_ps(0xffff, (__m512)power, (__m512)whole);
#else
    return (Vec<float>)((Mask<float>)power + (__builtin_convertvector(whole, Mask<float>) << 23));
#endif
}

// In double precision the library's functions, lane by lane: exactness over speed.
ANYMAX_INLINE Vec<double> exponential(Vec<double> x) {
    for (int i = 0; i < kLanes<double>; ++i) x[i] = std::exp(x[i]);
    return x;
}
ANYMAX_INLINE Vec<double> logarithm(Vec<double> x) {
    for (int i = 0; i < kLanes<double>; ++i) x[i] = std::log(x[i]);
    return x;
}

// log(1 + t) for t > -1, as accurate near zero as elsewhere: the rounding of 1 + t is put back.
template <class V> ANYMAX_INLINE V logarithm_of_one_plus(V t) {
    const V one_plus = t + 1;
    return logarithm(one_plus) + (t - (one_plus - 1)) / one_plus;
}

// How many vectors are summed in T before the sum moves to double, so that long rows lose nothing.
constexpr int kCarryEvery = 64;

// Sums of terms that are made a vector at a time; the last `carry` brings what is pending into `sums`.
template <class T, int num> struct CarriedSums {
    double sums[num] = {};
    Vec<T> recent[num] = {};
    int pending = 0;
    ANYMAX_INLINE void add(const Vec<T> (&terms)[num]) {
        for (int k = 0; k < num; ++k) recent[k] += terms[k];
        if (++pending == kCarryEvery) carry();
    }
    void carry() {
        for (int k = 0; k < num; ++k) {
            sums[k] += double(sum<T>(recent[k]));
            recent[k] = Vec<T>{};
        }
        pending = 0;
    }
};

}  // namespace anymax
