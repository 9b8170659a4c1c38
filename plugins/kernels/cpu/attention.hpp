// Paged attention.  Keys and values lie row-major, [token][padded head_dim], so any block size works, and a decoded
// token goes through the same arithmetic in the same order as one in the middle of a prompt:
//
//   span   SPAN tokens at fixed positions, computed on their own: largest score, sum, weighted values per row
//   chunk  CHUNK tokens of a span, one step of the online softmax
//   fold   spans joined in order
//
// Spans of one row may be computed by different threads; what is folded is the same.
#pragma once
#include "rows.hpp"
#include <vector>

namespace ms {

constexpr int CHUNK = 64, SPAN = 128;
constexpr int UNIT_ROWS = 24;                       // (token, head) rows that share the keys of one kv head
constexpr float NOTHING = -1e30f;                   // score of what a row does not see

struct Unit { int row, head, first, count; };       // `count` (token, head of group) rows from `first` of a batch row

struct Heads { int num_heads, num_kv_heads, dim, padded, group; };

static inline size_t slot_offset(const KV &kv, int layer, int block, int head, int token) {
    return (((size_t)layer * kv.num_blocks + block) * kv.num_kv_heads + head) * kv.block_size + token;
}
static inline int kv_bytes(int format) { return format == KV_F32 ? 4 : format == KV_INT8 ? 1 : 2; }

static inline void write_head(const KV &kv, void *pool, float *scales, size_t slot, const float *x) {
    int n = kv.head_dim, bytes = kv_bytes(kv.format);
    char *to = (char *)pool + slot * kv.padded_dim * bytes;
    memset(to + n * bytes, 0, (size_t)(kv.padded_dim - n) * bytes);
    if (kv.format == KV_F32) memcpy(to, x, 4 * (size_t)n);
    if (kv.format == KV_BF16) for (int i = 0; i < n; i++) { uint16_t b = to_bf16(x[i]); memcpy(to + 2 * i, &b, 2); }
    if (kv.format == KV_F16) for (int i = 0; i < n; i++) { _Float16 h = (_Float16)x[i]; memcpy(to + 2 * i, &h, 2); }
    if (kv.format == KV_INT8) {                     // its own scale for each head of each token, the largest value at 127
        float top = 0.f;
        for (int i = 0; i < n; i++) top = !(std::fabs(x[i]) <= top) ? std::fabs(x[i]) : top;
        float scale = top / 127, divisor = std::max(scale, 1.17549435e-38f);
        for (int i = 0; i < n; i++) {
            float q = std::nearbyint(x[i] / divisor);
            to[i] = (char)(q == q ? (int)q : 0);
        }
        scales[slot] = scale;
    }
}

static inline void read_head(const KV &kv, const void *pool, const float *scales, size_t slot, float *to) {
    const char *from = (const char *)pool + slot * kv.padded_dim * kv_bytes(kv.format);
    int n = kv.padded_dim;
    if (kv.format == KV_F16) for (int i = 0; i < n; i += LANES) store(to + i, load_half(from + 2 * i));
    if (kv.format == KV_BF16) for (int i = 0; i < n; i += LANES) store(to + i, load_bf16(from + 2 * i));
    if (kv.format == KV_INT8) for (int i = 0; i < n; i += LANES) store(to + i, load_int8(from + i) * scales[slot]);
}

// R rows times tokens [0, count), four at a time; key[] has entries up to a multiple of four.  The values of the same
// tokens are fetched meanwhile.
template <int R>
static void scores_tile(const float *q, int dim, const float *const *key, const float *const *value, int count, float *s) {
    for (int t = 0; t < count; t += 4) {
        vf c[R][4] = {};
        for (int d = 0; d < dim; d += LANES) {
            vf x[R];
#pragma GCC unroll 3
            for (int r = 0; r < R; r++) x[r] = load(q + r * dim + d);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {           // one key at a time: with the sums that is all the registers there are
                vf k = load(key[t + i] + d);
#pragma GCC unroll 3
                for (int r = 0; r < R; r++) c[r][i] = fma(x[r], k, c[r][i]);
            }
            if (value && d % 16 == 0)
                for (int i = 0; i < 4; i++) __builtin_prefetch(value[t + i] + d);
        }
        for (int r = 0; r < R; r++) sum4(c[r][0], c[r][1], c[r][2], c[r][3], s + r * CHUNK + t);
    }
}

// V vectors, from `at` on, of the weighted values of R rows.
template <int R, int V> static void values_tile(const float *p, const float *const *value, int count, float *acc, int dim, int at) {
    vf c[R][V];
    for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) c[r][v] = load(acc + r * dim + at + v * LANES);
    for (int t = 0; t < count; t++) {
        const float *from = value[t] + at;
        vf b[R];
#pragma GCC unroll 3
        for (int r = 0; r < R; r++) b[r] = set1(p[r * CHUNK + t]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            vf a = load(from + v * LANES);
#pragma GCC unroll 3
            for (int r = 0; r < R; r++) c[r][v] = fma(b[r], a, c[r][v]);
        }
    }
    for (int r = 0; r < R; r++) for (int v = 0; v < V; v++) store(acc + r * dim + at + v * LANES, c[r][v]);
}

template <int R>
static void values_rows(const float *p, const float *const *value, int count, float *acc, int dim) {
    int d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) values_tile<R, 4>(p, value, count, acc, dim, d);
    for (; d < dim; d += LANES) values_tile<R, 1>(p, value, count, acc, dim, d);
}

// Result of one span for the rows of a unit: [rows] largest score (in powers of two), [rows] sum, [rows][dim] values.
struct Partial {
    float *top, *sum, *acc;
    static size_t floats(int dim) { return (size_t)UNIT_ROWS * (dim + 2); }
    Partial(float *at) : top(at), sum(at + UNIT_ROWS), acc(at + 2 * UNIT_ROWS) {}
};

struct Scratch {                                    // of one thread, for one unit
    std::vector<float> floats;
    float *queries, *scores, *keys, *values, *mine, *joined;
    void reserve(int dim) {
        size_t part = Partial::floats(dim), need = (size_t)UNIT_ROWS * (dim + CHUNK) + 2 * (size_t)CHUNK * dim + 2 * part + 16;
        if (floats.size() < need) floats.resize(need);
        queries = (float *)(((uintptr_t)floats.data() + 63) & ~(uintptr_t)63);
        scores = queries + (size_t)UNIT_ROWS * dim, keys = scores + UNIT_ROWS * CHUNK, values = keys + (size_t)CHUNK * dim;
        mine = values + (size_t)CHUNK * dim, joined = mine + part;
    }
};

struct Attention {                                  // one layer's call
    const float *queries;                           // [tokens][stride], heads behind each other
    float *out;                                     // [tokens][out_stride]
    size_t stride, out_stride;
    const Batch &batch;
    const KV &kv;
    Heads heads;
    int layer, window;

    int token_of(const Unit &u, int r) const { return batch.cu_seqlens[u.row] + (u.first + r) / heads.group; }
    int head_of(const Unit &u, int r) const { return u.head * heads.group + (u.first + r) % heads.group; }
    int begin_of(int position) const { return window && position + 1 > window ? position + 1 - window : 0; }
    int first_span(const Unit &u) const { return begin_of(batch.positions[token_of(u, 0)]) / SPAN; }
    int last_span(const Unit &u) const { return batch.positions[token_of(u, u.count - 1)] / SPAN; }

    void span(const Unit &u, int index, Scratch &scratch, Partial to) const;
    void finish(const Unit &u, Partial from) const;
    void fold(const Unit &u, Partial joined, Partial part) const;
};

[[gnu::noinline]] inline void Attention::span(const Unit &u, int index, Scratch &scratch, Partial to) const {
    int D = heads.padded, n = u.count, ends[UNIT_ROWS], begins[UNIT_ROWS];
    const int32_t *table = batch.tables + (size_t)u.row * batch.table_width;
    float scale = 1.44269504f / std::sqrt((float)heads.dim);        // the softmax is taken in powers of two
    for (int r = 0; r < n; r++) {
        int token = token_of(u, r), position = batch.positions[token];
        const float *q = queries + token * stride + (size_t)head_of(u, r) * heads.dim;
        float *x = scratch.queries + (size_t)r * D;
        for (int d = 0; d < D; d++) x[d] = d < heads.dim ? q[d] * scale : 0.f;
        ends[r] = position + 1, begins[r] = begin_of(position);
        to.top[r] = NOTHING, to.sum[r] = 0.f;
    }
    std::fill(to.acc, to.acc + (size_t)n * D, 0.f);
    int begin = std::max(index * SPAN, begins[0] / CHUNK * CHUNK), end = std::min((index + 1) * SPAN, ends[n - 1]);
    const float *key[CHUNK], *value[CHUNK];
    for (int from = begin; from < end; from += CHUNK) {
        int count = std::min(CHUNK, end - from), seen = std::max(0, begins[0] - from);
        for (int t = seen; t < count;) {            // block by block; what no row sees is not read
            int at = from + t, offset = at % kv.block_size, run = std::min(kv.block_size - offset, count - t);
            size_t slot = slot_offset(kv, layer, table[at / kv.block_size], u.head, offset);
            for (int i = 0; i < run; i++, t++, slot++) {
                if (kv.format == KV_F32) {
                    key[t] = (const float *)kv.keys + slot * D, value[t] = (const float *)kv.values + slot * D;
                } else {
                    read_head(kv, kv.keys, kv.key_scales, slot, scratch.keys + t * D);
                    read_head(kv, kv.values, kv.value_scales, slot, scratch.values + t * D);
                    key[t] = scratch.keys + t * D, value[t] = scratch.values + t * D;
                }
            }
        }
        for (int t = 0; t < seen; t++) key[t] = key[seen], value[t] = value[seen];
        for (int t = count; t % 4; t++) key[t] = key[count - 1], value[t] = value[count - 1];
        for (int r = 0; r < n; r += 3) {
            const float *q = scratch.queries + (size_t)r * D;
            float *s = scratch.scores + r * CHUNK;
            const float *const *fetch = kv.format == KV_F32 && r == 0 ? value : nullptr;
            if (n - r >= 3) scores_tile<3>(q, D, key, fetch, count, s);
            else if (n - r == 2) scores_tile<2>(q, D, key, fetch, count, s);
            else scores_tile<1>(q, D, key, fetch, count, s);
        }
        for (int r = 0; r < n; r++) {
            float *s = scratch.scores + r * CHUNK;
            int low = begins[r] - from, high = ends[r] - from;      // this row sees [low, high) of the chunk
            for (int t = 0; t < low && t < count; t++) s[t] = NOTHING;
            int filled = rounded_up(count, LANES);
            for (int t = std::max(0, std::min(high, count)); t < filled; t++) s[t] = NOTHING;
            vf top = set1(to.top[r]), total = {};
            for (int t = 0; t < filled; t += LANES) top = greater(top, load(s + t));
            float m = largest(top), keep = exp2_negative(set1(to.top[r] - m))[0];
            for (int t = 0; t < filled; t += LANES) {
                vf x = load(s + t), p = exp2_negative(x - m);
                p = x <= NOTHING ? vf{} : p;
                total += p + (x - x);               // comparisons lose NaN: it goes into the sum
                store(s + t, p);
            }
            to.top[r] = m, to.sum[r] = std::fma(to.sum[r], keep, sum(total));
            float *acc = to.acc + (size_t)r * D;
            for (int d = 0; d < D; d += LANES) store(acc + d, load(acc + d) * keep);
        }
        for (int r = 0; r < n; r += 3) {
            const float *p = scratch.scores + r * CHUNK;
            float *acc = to.acc + (size_t)r * D;
            if (n - r >= 3) values_rows<3>(p, value, count, acc, D);
            else if (n - r == 2) values_rows<2>(p, value, count, acc, D);
            else values_rows<1>(p, value, count, acc, D);
        }
    }
}

inline void Attention::fold(const Unit &u, Partial joined, Partial part) const {
    int D = heads.padded;
    for (int r = 0; r < u.count; r++) {
        float *to = joined.acc + (size_t)r * D;
        const float *from = part.acc + (size_t)r * D;
        if (part.top[r] == NOTHING && part.sum[r] == 0.f) continue;       // the row sees nothing of the span
        if (joined.top[r] == NOTHING && joined.sum[r] == 0.f) {
            joined.top[r] = part.top[r], joined.sum[r] = part.sum[r];
            memcpy(to, from, 4 * (size_t)D);
            continue;
        }
        float m = std::max(joined.top[r], part.top[r]);
        float a = exp2_negative(set1(joined.top[r] - m))[0], b = exp2_negative(set1(part.top[r] - m))[0];
        joined.top[r] = m, joined.sum[r] = std::fma(joined.sum[r], a, part.sum[r] * b);
        for (int d = 0; d < D; d += LANES) store(to + d, fma(load(to + d), set1(a), load(from + d) * b));
    }
}

inline void Attention::finish(const Unit &u, Partial from) const {
    for (int r = 0; r < u.count; r++) {
        float *to = out + token_of(u, r) * out_stride + (size_t)head_of(u, r) * heads.dim, inverse = 1.f / from.sum[r];
        for (int d = 0; d < heads.dim; d++) to[d] = from.acc[(size_t)r * heads.padded + d] * inverse;
    }
}

}  // namespace ms
