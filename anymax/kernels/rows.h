// Sharing rows among threads.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace anymax {

// Below this many entries a second thread costs more than it brings.
constexpr int64_t kEntriesPerThread = 8192;

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <class T> using Buffer = std::unique_ptr<T[], Free>;

// Aligned for the widest vectors.
template <class T> Buffer<T> allocate(int64_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    return Buffer<T>(static_cast<T*>(std::aligned_alloc(64, bytes)));
}

// A large result is memory the system hands out page by page as it is first written, which takes longer than writing it.
// Asking for large pages makes that 512 times fewer. The advice is harmless where it is not taken.
template <class T> void prefer_large_pages([[maybe_unused]] T* memory, [[maybe_unused]] int64_t count) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t kLargePage = uintptr_t(1) << 21;
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t first = (address + kLargePage - 1) / kLargePage * kLargePage;
    const uintptr_t last = (address + count * sizeof(T)) / kLargePage * kLargePage;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

inline int threads_for(int64_t parts, int64_t entries, int available) {
    const int64_t useful = std::min(parts, 1 + entries / kEntriesPerThread);
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(useful, available)));
}

constexpr int64_t kMostRowsPerPart = 512;

// How many rows a thread takes at a time: enough parts to balance, of at least `least` rows, whatever the number of threads,
// so that results do not depend on it.
inline int64_t rows_per_part(int64_t rows, int64_t least) {
    return std::min<int64_t>(kMostRowsPerPart, std::max<int64_t>(1, rows / 64 / least) * least);
}

// Calls work(first, last, scratch) for parts of the rows, with `scratch_size` entries of scratch per thread.
// Returns false, with rows left undone, only if memory ran out.
template <class T, class Work>
bool for_parts_of_rows(int64_t rows, int64_t n, int64_t part, int available, int64_t scratch_size, const Work& work) {
    const int64_t num_parts = (rows + part - 1) / part;
    const int threads = threads_for(num_parts, rows * n, available);
    bool enough_memory = true;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(&& : enough_memory)
    {
        const Buffer<T> scratch = allocate<T>(scratch_size);
        enough_memory = scratch != nullptr;
        if (enough_memory) {
#pragma omp for schedule(dynamic) nowait
            for (int64_t i = 0; i < num_parts; ++i) work(i * part, std::min(rows, (i + 1) * part), scratch.get());
        }
    }
    return enough_memory;
}

}  // namespace anymax
