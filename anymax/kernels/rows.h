// Sharing rows among threads.

#pragma once

#include <algorithm>
#include <atomic>
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

// Memory for a thread: on its stack where little is needed, which a few short rows take less time than the allocator.
template <class T> class Scratch {
  public:
    explicit Scratch(int64_t count) : is_small_(count <= int64_t(kOnStack / sizeof(T))) {
        if (!is_small_) large_ = allocate<T>(count);
    }
    // Null if memory ran out.
    T* data() { return is_small_ ? reinterpret_cast<T*>(small_) : large_.get(); }

  private:
#if defined(__SANITIZE_ADDRESS__)
    // So that each use past the end is seen.
    static constexpr std::size_t kOnStack = 1;
#else
    static constexpr std::size_t kOnStack = 16384;
#endif
    const bool is_small_;
    alignas(64) unsigned char small_[kOnStack];
    Buffer<T> large_;
};

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
    std::atomic<int64_t> next{0};
    // Each thread takes the next part until there is none.
    const auto take_parts = [&] {
        Scratch<T> scratch(scratch_size);
        if (!scratch.data()) return false;
        for (int64_t i; (i = next++) < num_parts;) work(i * part, std::min(rows, (i + 1) * part), scratch.data());
        return true;
    };
    // Even of a single thread OpenMP makes a team, which takes longer than a few short rows.
    if (threads == 1) return take_parts();
    bool enough_memory = true;
#pragma omp parallel num_threads(threads) reduction(&& : enough_memory)
    enough_memory = take_parts();
    return enough_memory;
}

}  // namespace anymax
