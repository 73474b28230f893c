// Products of matrices, C = A B or C += A B, with a number for each column of C to begin with where one is given.
//
// A tile of C as large as the registers hold is the sum over k of a column of A times a row of B. Both are packed before:
// A into panels of kRows rows, B into panels of kColumns columns, each with the entries of one k side by side, so that the
// innermost loop reads straight on. A panel of B stays in the first cache while the panels of A pass by. Of the two, the
// smaller is packed once for all threads, a part of K at a time; the other by the thread that needs it.
//
// Half precision is widened where it is packed.
//
// Each entry is summed in the order of k in parts of at most kDepth, whatever the number of threads.

#include "matmul/panels.h"

namespace anymax {
namespace {

// How many entries are packed for all threads at once, and how many columns or rows a thread packs for itself.
constexpr int64_t kShared = 1 << 21;
constexpr int64_t kTile = 256;

// Panels of A from `first_row` on times panels of B from `first_column` on.
template <class T>
void multiply_packed(const T* a, int64_t a_panels, const T* b, int64_t b_panels, int64_t depth, const Result<T>& c,
                     int64_t first_row, int64_t first_column, bool adds) {
    for (int64_t j = 0; j < b_panels; ++j)
        for (int64_t i = 0; i < a_panels; ++i)
            multiply_tile(a + i * depth * kRows, kRows, b + j * depth * kColumns<T>, kColumns<T>, depth, c, first_row + i * kRows,
                          first_column + j * kColumns<T>, adds);
}

// Threads share A and divide the columns of C, or share B and divide the rows. Returns false if memory ran out.
template <bool kSharesA, class T>
bool multiply(const Operand& a, const Operand& b, int64_t depth, const Result<T>& c, int threads) {
    if (c.rows == 0 || c.columns == 0) return true;
    constexpr int kSharedWidth = kSharesA ? kRows : kColumns<T>, kOwnWidth = kSharesA ? kColumns<T> : kRows;
    const Operand &shared = kSharesA ? a : b, &own = kSharesA ? b : a;
    const int64_t shared_panels = num_panels<T>(shared.count, kSharedWidth), own_panels = num_panels<T>(own.count, kOwnWidth);
    const int64_t parts_of_k = std::max<int64_t>(1, (depth + kDepth - 1) / kDepth);
    const int64_t part = (depth + parts_of_k - 1) / parts_of_k;
    const int64_t parts_at_once = std::max<int64_t>(1, kShared / (shared_panels * kSharedWidth * std::max<int64_t>(1, part)));
    const int64_t panels_per_tile = std::max<int64_t>(1, std::min(kTile / kOwnWidth, own_panels / threads));
    const int64_t num_tiles = (own_panels + panels_per_tile - 1) / panels_per_tile;
    const int64_t shared_size = shared_panels * kSharedWidth * part;
    const Buffer<T> shared_packed = allocate<T>(shared_size * std::min(parts_at_once, parts_of_k) + kLanes<T>);
    bool enough_memory = shared_packed != nullptr;
    if (!enough_memory) return false;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(&& : enough_memory)
    {
        const Buffer<T> own_packed = allocate<T>(panels_per_tile * kOwnWidth * part + kLanes<T>);
        enough_memory = own_packed != nullptr;
        for (int64_t first_part = 0; first_part < parts_of_k; first_part += parts_at_once) {
            const int64_t last_part = std::min(parts_of_k, first_part + parts_at_once);
#pragma omp for schedule(static)
            for (int64_t index = 0; index < (last_part - first_part) * shared_panels; ++index) {
                const int64_t from = (first_part + index / shared_panels) * part, to = std::min(depth, from + part);
                T* packed = shared_packed.get() + index / shared_panels * shared_size + index % shared_panels * (to - from) * kSharedWidth;
                pack_panel<kSharedWidth>(shared, index % shared_panels, from, to, packed);
            }
#pragma omp for schedule(dynamic)
            for (int64_t tile = 0; tile < num_tiles; ++tile) {
                if (!own_packed) continue;
                const int64_t first = tile * panels_per_tile, count = std::min(panels_per_tile, own_panels - first);
                for (int64_t at = first_part; at < last_part; ++at) {
                    const int64_t from = at * part, to = std::min(depth, from + part);
                    for (int64_t i = 0; i < count; ++i)
                        pack_panel<kOwnWidth>(own, first + i, from, to, own_packed.get() + i * (to - from) * kOwnWidth);
                    const T* shared_here = shared_packed.get() + (at - first_part) * shared_size;
                    const bool adds = c.adds || at > 0;
                    if constexpr (kSharesA)
                        multiply_packed<T>(shared_here, shared_panels, own_packed.get(), count, to - from, c, 0, first * kOwnWidth, adds);
                    else
                        multiply_packed<T>(own_packed.get(), count, shared_here, shared_panels, to - from, c, first * kOwnWidth, 0, adds);
                }
            }
        }
    }
    return enough_memory;
}

}  // namespace
}  // namespace anymax

// A is rows x depth, B is depth x columns; of each, one of the two strides is 1. C has rows `stride` apart.
#define ANYMAX_MATMUL(T, NAME)                                                                                              \
    ANYMAX_EXPORT int64_t anymax_matmul_##NAME(const void* a, int a_stored, int64_t a_stride, int64_t a_stride_k,           \
                                               const void* b, int b_stored, int64_t b_stride_k, int64_t b_stride, T* c,     \
                                               int64_t c_stride, const T* bias, int adds, int64_t rows, int64_t depth,      \
                                               int64_t columns, int threads) {                                              \
        const anymax::Operand left = {a, a_stored, rows, a_stride, a_stride_k};                                             \
        const anymax::Operand right = {b, b_stored, columns, b_stride, b_stride_k};                                         \
        const anymax::Result<T> result = {c, c_stride, rows, columns, bias, adds != 0};                                     \
        const bool done = rows <= columns ? anymax::multiply<true, T>(left, right, depth, result, threads)                  \
                                          : anymax::multiply<false, T>(left, right, depth, result, threads);                \
        return done ? 0 : -1;                                                                                               \
    }

ANYMAX_MATMUL(float, float32)
ANYMAX_MATMUL(double, float64)

// Whether AMD made the processor.
ANYMAX_EXPORT int64_t anymax_is_amd() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd");
#else
    return 0;
#endif
}
