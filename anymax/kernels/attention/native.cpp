// Attention by entmax, a block of queries at a time: scores in the cache, probabilities, products with values.
//
// The keys and values of a head are packed once, but for a few queries, which read them where they are. For a block of its queries the scores are a product of tiles; each row of
// them becomes probabilities in place (choice.h), and by what the whole block has chosen, the values are gathered by lists or
// by a product of tiles again. Nothing of size queries times keys outlives its block.
//
// The backward computes the scores of a block once more and turns them into probabilities by the lambda of each row, without
// a search. With D what dropout multiplies a probability with, G the gradient of the results, Z that of the scores:
//
//     dV = (D p)' G,    dp = D (G V'),    Z = the gradient of entmax of dp,    dQ = scale Z K,    dK = scale Z' Q.
//
// Lists make each of the four products, and all that is done with entries, as small as the support.
//
// A task is a group of heads that share keys, or a part of its queries where there are fewer groups than threads; then the
// gradients of keys of all parts are summed at the end, in their order.

#include <cstring>
#include <vector>

#include "attention/choice.h"
#include "dropout/bits.h"
#include "entmax/gradient.h"

namespace anymax {
namespace {

// About how many scores a block has: in two such buffers they stay in the second cache. And the most rows.
constexpr int64_t kBlockEntries = 1 << 16;
constexpr int64_t kMostRows = kRows == 14 ? 56 : 48;
// The most queries, as in decoding, for which packing keys and values would take longer than what is done with them.
constexpr int64_t kFewQueries = 4;

// (batch, heads, rows, width), the width side by side.
template <class S> struct Tensor {
    S* data;
    int64_t batch, head, row;
    S* of(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

// Broadcasts to (batch, heads, queries, keys) by strides of zero. Either allowed or added is there, or neither.
template <class T> struct ScoreMask {
    const uint8_t* allowed;
    const T* added;
    int64_t batch, head, query, key;
};

template <class S> struct Job {
    using T = Wide<S>;
    int64_t batch, heads, groups, num_queries, num_keys, width, value_width;
    Tensor<const S> query, key, value;
    // Per batch and head.
    const T* alpha;
    const T* sink;
    ScoreMask<T> mask;
    bool is_causal;
    int64_t causal_offset;
    T scale;
    // Null without dropout. Where all are dropped, the rule cannot say so.
    const int64_t* seed;
    bool drops_all;
    Rule<T> rule;
    // (batch, heads, queries) each, side by side.
    S* out;
    T* shifts;

    int64_t heads_per_group() const { return heads / groups; }
    int64_t padded(int64_t n) const { return (n + kColumns<T> - 1) / kColumns<T> * kColumns<T>; }
    int64_t stride() const { return stride_of_rows<T>(num_keys); }
    int64_t rows_per_block() const {
        const int64_t tiles = kBlockEntries / (stride() * kRows);
        return kRows * std::max<int64_t>(1, std::min<int64_t>(tiles, kMostRows / kRows));
    }
    int64_t num_blocks() const { return (num_queries + rows_per_block() - 1) / rows_per_block(); }
    // Whether rows of keys and values are read where they are.
    bool reads_in_place() const {
        return !kIsHalf<S> && num_queries <= kFewQueries && width % kColumns<T> == 0 && value_width % kColumns<T> == 0;
    }
    // How many keys query q may look at, as far as causality says.
    int64_t reach(int64_t q) const {
        return is_causal ? std::max<int64_t>(0, std::min(num_keys, q + causal_offset + 1)) : num_keys;
    }
};

// What the gradient is asked for and given, beside a job whose shifts are known.
template <class S> struct Gradient {
    using T = Wide<S>;
    Tensor<const S> out;
    S *query, *key, *value;
    // Per batch and head, or null.
    T *alpha, *sink;
};

// Hands out aligned parts of one piece of memory. Without memory it only counts.
template <class T> class Arena {
  public:
    explicit Arena(T* memory) : memory_(memory) {}
    T* take(int64_t count) {
        T* part = memory_ ? memory_ + used_ : nullptr;
        used_ += (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
        return part;
    }
    template <class U> U* take_of(int64_t count) {
        return reinterpret_cast<U*>(take((count * int64_t(sizeof(U)) + int64_t(sizeof(T)) - 1) / int64_t(sizeof(T))));
    }
    int64_t used() const { return used_; }

  private:
    T* memory_;
    int64_t used_ = 0;
};

template <class S> void widen_row(const S* from, Wide<S>* to, int64_t count) {
    if constexpr (kIsHalf<S>) widen(from, to, count);
    else std::copy(from, from + count, to);
}
template <class S> void narrow_row(const Wide<S>* from, S* to, int64_t count) {
    if constexpr (kIsHalf<S>) narrow(from, to, count);
    else std::copy(from, from + count, to);
}

// Rows times `scale`, padded with zeros to `stride` numbers, and with rows of zeros to a multiple of kRows.
template <class S>
void copy_rows(const S* from, int64_t row_stride, int64_t rows, int64_t width, Wide<S>* to, int64_t stride, Wide<S> scale) {
    using T = Wide<S>;
    const int64_t padded_rows = (rows + kRows - 1) / kRows * kRows;
    for (int64_t r = 0; r < padded_rows; ++r, to += stride) {
        std::fill(to + (r < rows ? width : 0), to + stride, T(0));
        if (r >= rows) continue;
        widen_row(from + r * row_stride, to, width);
        if (scale != 1)
            for (int64_t i = 0; i < width; ++i) to[i] *= scale;
    }
}

// All panels of `count` vectors along `depth`.
template <int kWidth, class S>
void pack_panels(const S* data, int64_t count, int64_t step, int64_t step_k, int64_t depth, Wide<S>* packed) {
    const Operand operand = {data, 0, count, step, step_k};
    for (int64_t first = 0; first < count; first += kWidth)
        pack_stored<kWidth, S>(operand, first, 0, depth, packed + first * depth);
}

// C = A B or C += A B for the tiles of `rows` times `columns` of C, both whole numbers of tiles. The panels of A and of B are
// `a_panel` and `b_panel` apart.
template <class T>
void multiply_tiles(const T* a, int64_t a_panel, int64_t a_step, const T* b, int64_t b_panel, int64_t b_step, int64_t depth,
                    T* c, int64_t stride, int64_t rows, int64_t columns, bool adds) {
    const Result<T> result = {c, stride, rows, columns, nullptr, adds};
    for (int64_t j = 0; j * kColumns<T> < columns; ++j)
        for (int64_t i = 0; i * kRows < rows; ++i)
            multiply_tile(a + i * a_panel, a_step, b + j * b_panel, b_step, depth, result, i * kRows, j * kColumns<T>, adds);
}

// The keys and values of a group of heads, and what is made of them when it is first needed.
template <class S> struct Packed {
    using T = Wide<S>;
    const S *keys, *values;
    // Panels of columns; rows.
    T *keys_across, *values_across, *key_rows, *value_rows;
    bool is_in_place, has_values_across, has_key_rows;
};

// What a thread works with.
template <class S> struct Workspace {
    using T = Wide<S>;
    Block<T> block;
    // Rows of a block: queries times the scale, results or their gradient, the gradient of queries; panels of a block.
    T *queries, *results, *grad_queries, *panels;
    T* sink_probs;
    // Of the backward: gradients of a block's entries, and three rows.
    T *grads, *grad_row, *dropped_row, *gradient_scratch;
    Packed<S> packed;
    T *grad_keys, *grad_values;
};

template <class S> Workspace<S> workspace(const Job<S>& job, Arena<Wide<S>>& arena, bool is_backward) {
    Workspace<S> space = {};
    const int64_t rows = job.rows_per_block(), stride = job.stride(), keys = (job.num_keys + kRows - 1) / kRows * kRows;
    const int64_t width = job.padded(job.width), value_width = job.padded(job.value_width);
    using T = Wide<S>;
    Block<T>& block = space.block;
    block.stride = stride;
    block.listed_share = is_backward ? kListedBackward : kListedForward;
    block.entries = arena.take(rows * stride + kColumns<T>);
    block.numbers = arena.template take_of<int32_t>(rows * stride + kColumns<T>);
    block.lengths = arena.template take_of<int64_t>(rows);
    block.counts = arena.template take_of<int64_t>(rows);
    block.shifts = arena.take(rows);
    block.scratch = arena.take(choice_scratch<T>(stride));
    space.sink_probs = arena.take(rows);
    space.queries = arena.take(rows * width);
    space.results = arena.take(rows * value_width);
    // Of queries or of results, whole; of entries, a part of the keys.
    space.panels = arena.take(rows * std::max({width, value_width, kDepth}) + kColumns<T>);
    space.packed.keys_across = arena.take(job.padded(job.num_keys) * job.width + kColumns<T>);
    space.packed.value_rows = arena.take(keys * value_width);
    if (!is_backward) return space;
    space.grad_queries = arena.take(rows * width);
    space.grads = arena.take(rows * stride + kColumns<T>);
    space.grad_row = arena.take(stride);
    space.dropped_row = arena.take(stride);
    space.gradient_scratch = arena.take(gradient_scratch(stride));
    space.packed.values_across = arena.take(job.padded(job.num_keys) * job.value_width + kColumns<T>);
    space.packed.key_rows = arena.take(keys * width);
    return space;
}

template <class S> void pack_group(const Job<S>& job, int64_t b, int64_t g, bool is_in_place, Packed<S>& packed) {
    packed.keys = job.key.of(b, g);
    packed.values = job.value.of(b, g);
    packed.has_values_across = packed.has_key_rows = false;
    packed.is_in_place = is_in_place;
    if (is_in_place) return;
    pack_panels<kColumns<Wide<S>>>(packed.keys, job.num_keys, job.key.row, 1, job.width, packed.keys_across);
    copy_rows(packed.values, job.value.row, job.num_keys, job.value_width, packed.value_rows, job.padded(job.value_width), Wide<S>(1));
}

template <class S> struct Place {
    int64_t b, h, first, rows;
    // The number of the first row, of all.
    int64_t row(const Job<S>& job) const { return (b * job.heads + h) * job.num_queries + first; }
};

template <class T> void apply(const ScoreMask<T>& mask, int64_t b, int64_t h, int64_t q, T* x, int64_t n) {
    const int64_t at = b * mask.batch + h * mask.head + q * mask.query, step = mask.key;
    if (mask.allowed) {
        const uint8_t* allowed = mask.allowed + at;
        if (step == 1)
            for (int64_t k = 0; k < n; ++k) x[k] = allowed[k] ? x[k] : -kInfinity<T>;
        else
            for (int64_t k = 0; k < n; ++k) x[k] = allowed[k * step] ? x[k] : -kInfinity<T>;
    } else if (mask.added) {
        const T* added = mask.added + at;
        for (int64_t k = 0; k < n; ++k) x[k] += added[k * step];
    }
}

// The scores of a block, those that are not allowed minus infinity, and a sink's behind them. Returns up to which key any
// row of the block reaches, in whole tiles.
template <class S> int64_t compute_scores(const Job<S>& job, const Place<S>& place, Workspace<S>& space) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    const int64_t width = job.padded(job.width), padded_rows = (place.rows + kRows - 1) / kRows * kRows;
    const S* queries = job.query.of(place.b, place.h) + place.first * job.query.row;
    copy_rows(queries, job.query.row, place.rows, job.width, space.queries, width, job.scale);
    const int64_t reach = job.padded(job.reach(place.first + place.rows - 1));
    if constexpr (!kIsHalf<S>) {
        if (space.packed.is_in_place)
            for (int64_t r = 0; r < place.rows; ++r)
                dot_products(space.queries + r * width, space.packed.keys, job.key.row, width, AllNumbers(),
                             job.reach(place.first + r), block.row(r));
    }
    if (!space.packed.is_in_place) {
        pack_panels<kRows>(space.queries, padded_rows, width, 1, job.width, space.panels);
        multiply_tiles(space.panels, kRows * job.width, kRows, space.packed.keys_across, kColumns<T> * job.width, kColumns<T>,
                       job.width, block.entries, block.stride, padded_rows, reach, false);
    }
    const int64_t head = place.b * job.heads + place.h;
    block.rows = place.rows;
    block.alpha = double(job.alpha[head]);
    for (int64_t r = 0; r < place.rows; ++r) {
        const int64_t q = place.first + r, n = job.reach(q);
        apply(job.mask, place.b, place.h, q, block.row(r), n);
        if (job.sink) block.row(r)[n] = job.sink[head];
        block.lengths[r] = n + (job.sink != nullptr);
    }
    return reach;
}

// Takes the probability of the sink out of each row, which then ends in zeros up to `reach` where it is whole.
template <class S> void set_sinks_aside(const Job<S>& job, Workspace<S>& space, int64_t reach, bool is_listed) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    for (int64_t r = 0; r < block.rows; ++r) {
        T* x = block.row(r);
        const int64_t n = block.lengths[r] - (job.sink != nullptr);
        T& sink_prob = space.sink_probs[r];
        sink_prob = 0;
        if (!is_listed) {
            if (job.sink) sink_prob = x[n];
            std::fill(x + n, x + std::max(n, reach), T(0));
        } else if (job.sink && block.counts[r] && block.numbers_of(r)[block.counts[r] - 1] == n) {
            sink_prob = x[--block.counts[r]];
        }
        block.lengths[r] = n;
    }
}

// Entries of row r of the block times what dropout says, into `to`.
template <class S>
void drop_row(const Job<S>& job, const Place<S>& place, const Block<Wide<S>>& block, int64_t r, const Wide<S>* from, Wide<S>* to, bool is_listed) {
    using T = Wide<S>;
    const int64_t count = is_listed ? block.counts[r] : block.lengths[r];
    if (job.drops_all) return std::fill(to, to + count, T(0));
    const int64_t seed = int64_t(uint64_t(*job.seed) + uint64_t(place.row(job) + r));
    if (is_listed) drop_listed(from, block.numbers_of(r), to, count, seed, job.rule);
    else drop(from, to, count, seed, 0, job.rule);
}

// C = A B for the rows of a block: A its entries up to `reach`, packed a part at a time, B rows of numbers.
template <class S>
void multiply_entries(const Wide<S>* entries, const Workspace<S>& space, int64_t reach, const Wide<S>* rows, int64_t width, Wide<S>* to) {
    using T = Wide<S>;
    const Block<T>& block = space.block;
    const int64_t padded_rows = (block.rows + kRows - 1) / kRows * kRows;
    if (reach == 0) std::fill(to, to + padded_rows * width, T(0));
    for (int64_t from = 0; from < reach; from += kDepth) {
        const int64_t depth = std::min(reach - from, kDepth);
        pack_panels<kRows>(entries + from, block.rows, block.stride, 1, depth, space.panels);
        multiply_tiles(space.panels, kRows * depth, kRows, rows + from * width, kColumns<T>, width, depth, to, width, padded_rows,
                       width, from > 0);
    }
}

template <class S> void forward_block(const Job<S>& job, const Place<S>& place, Workspace<S>& space) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    const int64_t value_width = job.padded(job.value_width);
    const int64_t reach = std::min(job.num_keys, compute_scores(job, place, space));
    choose(block);
    const bool is_listed = settle_on_lists(block);
    set_sinks_aside(job, space, reach, is_listed);
    if (job.seed)
        for (int64_t r = 0; r < block.rows; ++r) drop_row(job, place, block, r, block.row(r), block.row(r), is_listed);
    const bool gathers = is_listed || space.packed.is_in_place;
    for (int64_t r = 0; r < block.rows && gathers; ++r) {
        T* to = space.results + r * value_width;
        const T *probs = block.row(r), *rows = space.packed.value_rows;
        int64_t stride = value_width;
        if constexpr (!kIsHalf<S>)
            if (space.packed.is_in_place) rows = space.packed.values, stride = job.value.row;
        if (is_listed) gather(probs, block.numbers_of(r), block.counts[r], rows, stride, value_width, to);
        else gather(probs, AllNumbers(), block.lengths[r], rows, stride, value_width, to);
    }
    if (!gathers) multiply_entries(block.entries, space, reach, space.packed.value_rows, value_width, space.results);
    for (int64_t r = 0; r < block.rows; ++r)
        narrow_row(space.results + r * value_width, job.out + (place.row(job) + r) * job.value_width, job.value_width);
    std::copy(block.shifts, block.shifts + block.rows, job.shifts + place.row(job));
}

// Gradients by alpha and by the sink of one head.
struct HeadGradient {
    double alpha, sink;
};

// The gradient by the scores of row r, of `count` entries, from that by its probabilities in `grads`, into grad_row.
template <class S>
void gradient_of_row(Workspace<S>& space, int64_t r, int64_t count, Wide<S>* grads, bool wants_alpha, HeadGradient& head) {
    using T = Wide<S>;
    T* probs = space.block.row(r);
    const bool has_sink = space.sink_probs[r] != 0;
    if (has_sink) {
        // The sink's value is zero, and so is the gradient by its probability.
        probs[count] = space.sink_probs[r];
        grads[count] = 0;
    }
    const int64_t n = count + has_sink;
    if (n == 0) return;
    T by_alpha = 0;
    backward_row(grads, probs, space.block.alpha - 1, space.grad_row, wants_alpha ? &by_alpha : nullptr, n, space.gradient_scratch);
    head.alpha += double(by_alpha);
    if (has_sink) {
        head.sink += double(space.grad_row[count]);
        probs[count] = space.grad_row[count] = 0;
    }
}

template <class S>
void backward_lists(const Job<S>& job, const Place<S>& place, Workspace<S>& space, bool wants_alpha, HeadGradient& head) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    const int64_t width = job.padded(job.width), value_width = job.padded(job.value_width);
    for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t count = block.counts[r];
        const int32_t* numbers = block.numbers_of(r);
        const T *query = space.queries + r * width, *grad = space.results + r * value_width;
        T *grads = space.grads, *grad_query = space.grad_queries + r * width, *probs = block.row(r);
        dot_products(grad, space.packed.value_rows, value_width, value_width, numbers, count, grads);
        const T* gathered_by = probs;
        if (job.seed) {
            drop_row(job, place, block, r, grads, grads, true);
            drop_row(job, place, block, r, probs, space.dropped_row, true);
            gathered_by = space.dropped_row;
        }
        spread(gathered_by, numbers, count, grad, space.grad_values, value_width);
        gradient_of_row(space, r, count, grads, wants_alpha, head);
        gather(space.grad_row, numbers, count, space.packed.key_rows, width, width, grad_query);
        spread(space.grad_row, numbers, count, query, space.grad_keys, width);
    }
}

template <class S>
void backward_whole(const Job<S>& job, const Place<S>& place, Workspace<S>& space, int64_t reach, bool wants_alpha, HeadGradient& head) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    Packed<S>& packed = space.packed;
    const int64_t width = job.padded(job.width), value_width = job.padded(job.value_width), stride = block.stride;
    const int64_t padded_rows = (block.rows + kRows - 1) / kRows * kRows, keys = (reach + kRows - 1) / kRows * kRows;
    if (!packed.has_values_across)
        pack_panels<kColumns<T>>(packed.values, job.num_keys, job.value.row, 1, job.value_width, packed.values_across);
    packed.has_values_across = true;
    const T* gathered_by = block.entries;
    if (job.seed) {
        for (int64_t r = 0; r < block.rows; ++r) {
            T* to = space.grads + r * stride;
            drop_row(job, place, block, r, block.row(r), to, false);
            std::fill(to + block.lengths[r], to + std::max(keys, block.lengths[r]), T(0));
        }
        gathered_by = space.grads;
    }
    multiply_tiles(gathered_by, kRows, stride, space.results, kColumns<T>, value_width, block.rows, space.grad_values, value_width, keys,
                   value_width, true);
    pack_panels<kRows>(space.results, padded_rows, value_width, 1, job.value_width, space.panels);
    multiply_tiles(space.panels, kRows * job.value_width, kRows, packed.values_across, kColumns<T> * job.value_width, kColumns<T>,
                   job.value_width, space.grads, stride, padded_rows, job.padded(reach), false);
    for (int64_t r = 0; r < block.rows; ++r) {
        T* grads = space.grads + r * stride;
        const int64_t n = block.lengths[r];
        if (job.seed) drop_row(job, place, block, r, grads, grads, false);
        gradient_of_row(space, r, n, grads, wants_alpha, head);
        std::copy(space.grad_row, space.grad_row + n, grads);
        std::fill(grads + n, grads + std::max(keys, n), T(0));
    }
    multiply_entries(space.grads, space, reach, packed.key_rows, width, space.grad_queries);
    multiply_tiles(space.grads, kRows, stride, space.queries, kColumns<T>, width, block.rows, space.grad_keys, width, keys, width, true);
}

template <class S>
void backward_block(const Job<S>& job, const Gradient<S>& gradient, const Place<S>& place, Workspace<S>& space, HeadGradient& head) {
    using T = Wide<S>;
    Block<T>& block = space.block;
    Packed<S>& packed = space.packed;
    const int64_t width = job.padded(job.width), value_width = job.padded(job.value_width);
    const int64_t reach = std::min(job.num_keys, compute_scores(job, place, space));
    std::copy_n(job.shifts + place.row(job), block.rows, block.shifts);
    choose_again(block);
    const bool is_listed = settle_on_lists(block);
    // Whole rows end in zeros up to a whole tile of keys.
    set_sinks_aside(job, space, (reach + kRows - 1) / kRows * kRows, is_listed);
    const S* grad = gradient.out.of(place.b, place.h) + place.first * gradient.out.row;
    copy_rows(grad, gradient.out.row, block.rows, job.value_width, space.results, value_width, T(1));
    if (!packed.has_key_rows) copy_rows(packed.keys, job.key.row, job.num_keys, job.width, packed.key_rows, width, T(1));
    packed.has_key_rows = true;
    if (is_listed) backward_lists(job, place, space, gradient.alpha != nullptr, head);
    else backward_whole(job, place, space, reach, gradient.alpha != nullptr, head);
    for (int64_t r = 0; r < block.rows; ++r) {
        T* grad_query = space.grad_queries + r * width;
        for (int64_t i = 0; i < job.width; ++i) grad_query[i] *= job.scale;
        narrow_row(grad_query, gradient.query + (place.row(job) + r) * job.width, job.width);
    }
}

template <class T> int64_t bad_alpha(const T* alpha, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        if (!(alpha[i] >= 0 && alpha[i] < kInfinity<T>)) return i + 1;
    return 0;
}

constexpr int64_t kOutOfMemory = -1;

// How many parts the queries of a group are divided into.
template <class S> int64_t parts_for(const Job<S>& job, int threads) {
    const int64_t groups = std::max<int64_t>(1, job.batch * job.groups), wanted = threads == 1 ? 1 : 2 * threads;
    return std::max<int64_t>(1, std::min((wanted + groups - 1) / groups, job.num_blocks()));
}

// Calls work(b, g, part, space) for all tasks, with a workspace per thread. Returns false if memory ran out.
template <class S, class Work>
bool for_tasks(const Job<S>& job, int64_t parts, int available, bool is_backward, const Work& work) {
    using T = Wide<S>;
    const int64_t tasks = job.batch * job.groups * parts;
    const int threads = threads_for(tasks, job.batch * job.heads * job.num_queries * job.num_keys, available);
    Arena<T> counter(nullptr);
    workspace(job, counter, is_backward);
    std::atomic<int64_t> next{0};
    const auto take_tasks = [&] {
        const Buffer<T> memory = allocate<T>(counter.used());
        if (!memory) return false;
        // Zeros once, so that no vector reads what was never written.
        std::fill(memory.get(), memory.get() + counter.used(), T(0));
        Arena<T> arena(memory.get());
        Workspace<S> space = workspace(job, arena, is_backward);
        for (int64_t task; (task = next++) < tasks;) {
            const int64_t group = task / parts, b = group / job.groups, g = group % job.groups;
            pack_group(job, b, g, !is_backward && job.reads_in_place(), space.packed);
            work(b, g, task % parts, space);
        }
        return true;
    };
    if (threads == 1) return take_tasks();
    bool enough_memory = true;
#pragma omp parallel num_threads(threads) reduction(&& : enough_memory)
    enough_memory = take_tasks();
    return enough_memory;
}

// Calls work(place) for the blocks of one head in one part of its queries.
template <class S, class Work> void for_blocks(const Job<S>& job, int64_t b, int64_t h, int64_t part, int64_t parts, const Work& work) {
    const int64_t blocks = job.num_blocks(), rows = job.rows_per_block();
    for (int64_t block = part * blocks / parts; block < (part + 1) * blocks / parts; ++block)
        work(Place<S>{b, h, block * rows, std::min(rows, job.num_queries - block * rows)});
}

template <class S> int64_t forward(const Job<S>& job, int threads) {
    if (const int64_t bad = bad_alpha(job.alpha, job.batch * job.heads)) return bad;
    const int64_t parts = parts_for(job, threads);
    const bool done = for_tasks(job, parts, threads, false, [&](int64_t b, int64_t g, int64_t part, Workspace<S>& space) {
        for (int64_t h = g * job.heads_per_group(); h < (g + 1) * job.heads_per_group(); ++h)
            for_blocks(job, b, h, part, parts, [&](const Place<S>& place) { forward_block(job, place, space); });
    });
    return done ? 0 : kOutOfMemory;
}

template <class S> int64_t backward(const Job<S>& job, const Gradient<S>& gradient, int threads) {
    using T = Wide<S>;
    const int64_t parts = parts_for(job, threads), groups = job.batch * job.groups, heads = job.batch * job.heads;
    const int64_t keys = (job.num_keys + kRows - 1) / kRows * kRows;
    const int64_t key_size = keys * job.padded(job.width), value_size = keys * job.padded(job.value_width);
    // With one part a task needs its gradients of keys only while it runs, and threads share as many as there are tasks.
    const int64_t sums = groups * parts;
    const Buffer<T> grads = allocate<T>(sums * (key_size + value_size));
    const Buffer<HeadGradient> of_heads = allocate<HeadGradient>(heads * parts);
    if (!grads || !of_heads) return kOutOfMemory;
    const auto write = [&](const T* from, int64_t stride, S* to, int64_t width) {
        for (int64_t k = 0; k < job.num_keys; ++k) narrow_row(from + k * stride, to + k * width, width);
    };
    const auto finish = [&](int64_t group, T* sum) {
        for (int64_t part = 1; part < parts; ++part) {
            const T* more = sum + part * (key_size + value_size);
            for (int64_t i = 0; i < key_size + value_size; ++i) sum[i] += more[i];
        }
        write(sum, job.padded(job.width), gradient.key + group * job.num_keys * job.width, job.width);
        write(sum + key_size, job.padded(job.value_width), gradient.value + group * job.num_keys * job.value_width, job.value_width);
    };
    const bool done = for_tasks(job, parts, threads, true, [&](int64_t b, int64_t g, int64_t part, Workspace<S>& space) {
        const int64_t group = b * job.groups + g;
        T* sum = grads.get() + (group * parts + part) * (key_size + value_size);
        std::fill(sum, sum + key_size + value_size, T(0));
        space.grad_keys = sum;
        space.grad_values = sum + key_size;
        for (int64_t h = g * job.heads_per_group(); h < (g + 1) * job.heads_per_group(); ++h) {
            HeadGradient head = {0, 0};
            for_blocks(job, b, h, part, parts, [&](const Place<S>& place) { backward_block(job, gradient, place, space, head); });
            of_heads[(b * job.heads + h) * parts + part] = head;
        }
        if (parts == 1) finish(group, sum);
    });
    if (!done) return kOutOfMemory;
    if (parts > 1)
        for (int64_t group = 0; group < groups; ++group) finish(group, grads.get() + group * parts * (key_size + value_size));
    for (int64_t head = 0; head < heads; ++head) {
        HeadGradient sum = {0, 0};
        for (int64_t part = 0; part < parts; ++part) {
            sum.alpha += of_heads[head * parts + part].alpha;
            sum.sink += of_heads[head * parts + part].sink;
        }
        if (gradient.alpha) gradient.alpha[head] = static_cast<T>(sum.alpha);
        if (gradient.sink) gradient.sink[head] = static_cast<T>(sum.sink);
    }
    return 0;
}

// How the arguments below name a job: sizes as in `Job`, then the strides of queries, keys, values, the mask and the gradient.
template <class S>
Job<S> job_of(const S* query, const S* key, const S* value, const Wide<S>* alpha, const uint8_t* allowed, const Wide<S>* added,
              const Wide<S>* sink, const int64_t* seed, const int64_t* sizes, double scale, int64_t threshold, double drop_scale,
              int is_causal, int64_t causal_offset, S* out, Wide<S>* shifts) {
    using T = Wide<S>;
    const int64_t* strides = sizes + 7;
    const auto tensor = [&](const S* data) {
        strides += 3;
        return Tensor<const S>{data, strides[-3], strides[-2], strides[-1]};
    };
    Job<S> job = {};
    job.batch = sizes[0], job.heads = sizes[1], job.groups = sizes[2], job.num_queries = sizes[3], job.num_keys = sizes[4];
    job.width = sizes[5], job.value_width = sizes[6];
    job.query = tensor(query), job.key = tensor(key), job.value = tensor(value);
    job.mask = {allowed, added, strides[0], strides[1], strides[2], strides[3]};
    job.alpha = alpha, job.sink = sink, job.seed = seed;
    job.scale = T(scale);
    job.drops_all = threshold > int64_t(UINT32_MAX);
    job.rule = {uint32_t(threshold), T(drop_scale)};
    job.is_causal = is_causal != 0, job.causal_offset = causal_offset;
    job.out = out, job.shifts = shifts;
    return job;
}

}  // namespace
}  // namespace anymax

// `sizes` are batch, heads, groups, queries, keys, their width and that of the values; then strides by batch, head and row of
// queries, of keys and of values; then strides of the mask by batch, head, query and key. `allowed` and `added` are two kinds
// of mask; either, the sink or the seed may be null.
#define ANYMAX_ATTENTION(S, NAME)                                                                                           \
    ANYMAX_EXPORT int64_t anymax_attention_forward_##NAME(                                                                  \
        const S* query, const S* key, const S* value, const anymax::Wide<S>* alpha, const uint8_t* allowed,                 \
        const anymax::Wide<S>* added, const anymax::Wide<S>* sink, const int64_t* seed, const int64_t* sizes, double scale, \
        int64_t threshold, double drop_scale, int is_causal, int64_t causal_offset, S* out, anymax::Wide<S>* shifts,        \
        int threads) {                                                                                                      \
        return anymax::forward<S>(anymax::job_of<S>(query, key, value, alpha, allowed, added, sink, seed, sizes, scale,     \
                                                    threshold, drop_scale, is_causal, causal_offset, out, shifts),          \
                                  threads);                                                                                 \
    }                                                                                                                       \
    ANYMAX_EXPORT int64_t anymax_attention_backward_##NAME(                                                                 \
        const S* query, const S* key, const S* value, const anymax::Wide<S>* alpha, const uint8_t* allowed,                 \
        const anymax::Wide<S>* added, const anymax::Wide<S>* sink, const int64_t* seed, const int64_t* sizes, double scale, \
        int64_t threshold, double drop_scale, int is_causal, int64_t causal_offset, anymax::Wide<S>* shifts, const S* grad, \
        const int64_t* grad_strides, S* grad_query, S* grad_key, S* grad_value, anymax::Wide<S>* grad_alpha,                \
        anymax::Wide<S>* grad_sink, int threads) {                                                                          \
        const anymax::Job<S> job =                                                                                          \
            anymax::job_of<S>(query, key, value, alpha, allowed, added, sink, seed, sizes, scale, threshold, drop_scale,    \
                              is_causal, causal_offset, static_cast<S*>(nullptr), shifts);                                  \
        const anymax::Tensor<const S> out = {grad, grad_strides[0], grad_strides[1], grad_strides[2]};                      \
        return anymax::backward<S>(job, {out, grad_query, grad_key, grad_value, grad_alpha, grad_sink}, threads);           \
    }

ANYMAX_ATTENTION(float, float32)
ANYMAX_ATTENTION(double, float64)
ANYMAX_ATTENTION(anymax::Float16, float16)
ANYMAX_ATTENTION(anymax::BFloat16, bfloat16)
