// Dropout of single entries whose random bits are a hash of the seed and of the entry's number, defined in reference.py.
//
// The hash starts from a sequence that a vector steps through by addition; then come two rounds of shift, xor and multiply on
// 32 bits. The loops are written for the compiler to vectorise, and cost about as much as the memory they walk through.

#include "dropout/bits.h"
#include "rows.h"
#include "vector.h"

namespace anymax {
namespace {

// What a thread takes at a time; it divides 2^32, so all entries of a block share their keys.
constexpr int64_t kBlock = 1 << 15;

template <class T>
int64_t dropout(const T* x, const int64_t* seeds, T* out, int64_t rows, int64_t n, int64_t first, int64_t threshold,
                double scale, int threads) {
    if (threshold > int64_t(UINT32_MAX)) {
        std::fill(out, out + rows * n, T(0));
        return 0;
    }
    const Rule<T> rule = {uint32_t(threshold), static_cast<T>(scale)};
    const int64_t first_block = first / kBlock, blocks = (first + n + kBlock - 1) / kBlock - first_block;
    const int useful = threads_for(rows * blocks, rows * n, threads);
#pragma omp parallel for schedule(dynamic) num_threads(useful) if (useful > 1)
    for (int64_t part = 0; part < rows * blocks; ++part) {
        const int64_t row = part / blocks, block = first_block + part % blocks;
        const int64_t from = std::max(first, block * kBlock), to = std::min(first + n, (block + 1) * kBlock);
        const int64_t at = row * n + from - first;
        drop(x + at, out + at, to - from, seeds[row], from, rule);
    }
    return 0;
}

}  // namespace
}  // namespace anymax

#define ANYMAX_DROPOUT(T, NAME)                                                                                        \
    ANYMAX_EXPORT int64_t anymax_dropout_##NAME(const T* x, const int64_t* seeds, T* out, int64_t rows, int64_t n,    \
                                                int64_t first, int64_t threshold, double scale, int threads) {         \
        return anymax::dropout(x, seeds, out, rows, n, first, threshold, scale, threads);                              \
    }

ANYMAX_DROPOUT(float, float32)
ANYMAX_DROPOUT(double, float64)
