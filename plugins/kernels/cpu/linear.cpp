// Tiles of R rows times one panel, for each format.  See linear.hpp for the layout.
#include "linear.hpp"
#include <type_traits>
#include <utility>

namespace ms {

constexpr int MOST_ROWS = ROWS_FLOAT32;             // of all formats
constexpr int AHEAD = 2048;                         // bytes, measured

static inline void finish(const Segment &s, const Out &out, int row, int panel, vf v0, vf v1) {
    int column = panel * PANEL, valid = s.outputs - column;
    float *to = out.data + row * out.stride + s.first + column;
    if (valid >= PANEL) {
        if (s.bias) v0 += load(s.bias + column), v1 += load(s.bias + column + LANES);
        if (out.add) v0 += load(to), v1 += load(to + LANES);
        store(to, v0), store(to + LANES, v1);
        return;
    }
    float v[PANEL];
    store(v, v0), store(v + LANES, v1);
    for (int i = 0; i < valid; i++) {
        float y = s.bias ? v[i] + s.bias[column + i] : v[i];
        to[i] = out.add ? to[i] + y : y;
    }
}

// Pointers to every third row, which addressing can reach from one register.
template <class T, int R> struct Rows {
    const T *at[(R + 2) / 3];
    size_t stride;
    Rows(const T *x, size_t stride_) : stride(stride_) { for (int i = 0; i < (R + 2) / 3; i++) at[i] = x + 3 * i * stride; }
    T operator()(int r, size_t k) const { return at[r / 3][r % 3 * stride + k]; }
};

// Weights are read in order, but the machine's own fetching stops at every page.  What one row reads nobody reads again
// before all of it has gone by: kept out of the last cache, it leaves room there for the interpreter's next turn.
template <int R> static inline void fetch_ahead(const char *w, size_t bytes) {
    for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch(w + AHEAD + b, 0, R == 1 ? 0 : 3);
}

template <int FORMAT, int R>
static void dense_tile(const Segment &s, const Activations &a, int row, int panel, const Out &out) {
    const char *w = (const char *)s.weights + panel_bytes(FORMAT, s.inputs) * panel;
    Rows<float, R> x(a.floats + (size_t)row * a.width, a.width);
    vf c[R][2] = {};
    if (FORMAT == FLOAT32) {
        for (int k = 0; k < s.inputs; k++, w += 2 * VECTOR) {
            if (R > 1) fetch_ahead<R>(w, 2 * VECTOR);  // for one row the machine's own fetching keeps up
            vf w0 = load((const float *)w), w1 = load((const float *)(w + VECTOR));
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                vf b = set1(x(r, k));
                c[r][0] = fma(w0, b, c[r][0]), c[r][1] = fma(w1, b, c[r][1]);
            }
        }
    } else {
        for (int k = 0; k < s.inputs; k += 2, w += 2 * VECTOR) {
            fetch_ahead<R>(w, 2 * VECTOR);
            vi pair0 = load_words(w), pair1 = load_words(w + VECTOR);
            vf w0 = (vf)(pair0 << 16), w1 = (vf)(pair1 << 16);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                vf b = set1(x(r, k));
                c[r][0] = fma(w0, b, c[r][0]), c[r][1] = fma(w1, b, c[r][1]);
            }
            w0 = (vf)(pair0 & (int32_t)0xffff0000), w1 = (vf)(pair1 & (int32_t)0xffff0000);
#pragma GCC unroll 12
            for (int r = 0; r < R; r++) {
                vf b = set1(x(r, k + 1));
                c[r][0] = fma(w0, b, c[r][0]), c[r][1] = fma(w1, b, c[r][1]);
            }
        }
    }
    for (int r = 0; r < R; r++) finish(s, out, row + r, panel, c[r][0], c[r][1]);
}

static inline vi pair_of_nibbles(vi word, int j) {
    return j == 3 ? (vi)((vh)word >> 12) : (vi)((vh)word >> (4 * j)) & 0x000f000f;
}
static inline vi pair_of_bytes(vi word, int j) { return j ? (vi)((vs)word >> 8) : (vi)((vs)((vh)word << 8) >> 8); }

template <int FORMAT, int R>
static void grouped_tile(const Segment &s, const Activations &a, int row, int panel, const Out &out) {
    constexpr int BITS = FORMAT == Q4_HALF || FORMAT == Q4_FLOAT ? 4 : 8, STEP = BITS / 4, PARTS = FORMAT == Q8_FLOAT16 ? 2 : 1;
    constexpr bool HALF = FORMAT == Q4_HALF || FORMAT == Q8_HALF;
    int groups = a.groups;
    size_t bytes = group_bytes(FORMAT), stride = (size_t)groups * (GROUP / 2);
    const char *w = (const char *)s.weights + panel_bytes(FORMAT, s.inputs) * panel;
    Rows<int32_t, R> x(a.words16 + row * stride, stride);
    Rows<float, R> scale(a.scale16 + (size_t)row * groups, groups), total(a.sum16 + (size_t)row * groups, groups);
    vf f[R][2] = {};
    for (int g = 0; g < groups; g++, w += bytes) {
        fetch_ahead<R>(w, bytes);
        const char *d = w + GROUP * PANEL * BITS / 8;
        for (int part = 0; part < PARTS; part++) {
            vi c[R][2] = {};
#pragma GCC unroll 1
            for (int k = part * 4 / PARTS; k < (part + 1) * 4 / PARTS; k++) {
                const char *words = w + k * STEP * 2 * VECTOR;
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const char *at = words + (BITS == 4 ? 0 : j % 2 * 2 * VECTOR);
                    vi w0 = load_words(at), w1 = load_words(at + VECTOR);
                    w0 = BITS == 4 ? pair_of_nibbles(w0, j) : pair_of_bytes(w0, j / 2);
                    w1 = BITS == 4 ? pair_of_nibbles(w1, j) : pair_of_bytes(w1, j / 2);
#pragma GCC unroll 12
                    for (int r = 0; r < R; r++) {
                        vi b = set1(x(r, (size_t)g * (GROUP / 2) + k * 4 + j));
                        c[r][0] = dot16(c[r][0], w0, b), c[r][1] = dot16(c[r][1], w1, b);
                    }
                }
            }
            vf d0 = HALF ? load_half(d) : load((const float *)d + part * PANEL);
            vf d1 = HALF ? load_half(d + 2 * LANES) : load((const float *)d + part * PANEL + LANES);
            for (int r = 0; r < R; r++) {
                float xs = scale(r, g);
                f[r][0] = fma(to_float(c[r][0]), d0 * xs, f[r][0]), f[r][1] = fma(to_float(c[r][1]), d1 * xs, f[r][1]);
            }
        }
        if (BITS == 4) {
            vf m0 = HALF ? load_half(d + 2 * PANEL) : load((const float *)d + PANEL);
            vf m1 = HALF ? load_half(d + 2 * PANEL + 2 * LANES) : load((const float *)d + PANEL + LANES);
            for (int r = 0; r < R; r++) {
                vf xm = set1(total(r, g));
                f[r][0] = fma(m0, xm, f[r][0]), f[r][1] = fma(m1, xm, f[r][1]);
            }
        }
    }
    for (int r = 0; r < R; r++) finish(s, out, row + r, panel, f[r][0], f[r][1]);
}

// Four inputs a lane at word `k`, half `j`: inputs 8 k + j, + 2, + 4, + 6.
template <int BITS> static inline vi four(const char *w, int k, int j) {
    if (BITS == 4) return (vi)((vh)load_words(w + k * 2 * VECTOR) >> (4 * j)) & 0x0f0f0f0f;
    return signed8(load_words(w + (2 * k + j) * 2 * VECTOR));
}

template <int FORMAT, int R>
static void grouped8_tile(const Segment &s, const Activations &a, int row, int panel, const Out &out) {
    constexpr int BITS = FORMAT == Q4_HALF || FORMAT == Q4_FLOAT ? 4 : 8, PARTS = FORMAT == Q8_FLOAT16 ? 2 : 1;
    constexpr bool HALF = FORMAT == Q4_HALF || FORMAT == Q8_HALF;
    using Sums = std::conditional_t<BITS == 4, Sum8, vi>;
    int groups = a.groups;
    size_t bytes = group_bytes(FORMAT), stride = (size_t)groups * (GROUP / 4);
    const char *w = (const char *)s.weights + panel_bytes(FORMAT, s.inputs) * panel;
    Rows<int32_t, R> x(a.words8 + row * stride, stride), halves(a.halves8 + (size_t)row * groups * 2, (size_t)groups * 2);
    Rows<float, R> scale(a.scale8 + (size_t)row * groups, groups), total(a.sum8 + (size_t)row * groups, groups);
    vf f[R][2] = {};
    for (int g = 0; g < groups; g++, w += bytes) {
        fetch_ahead<R>(w, bytes);
        const char *d = w + GROUP * PANEL * BITS / 8;
        for (int part = 0; part < PARTS; part++) {
            Sums c[R][2] = {};
            if (BITS == 8 && OFFSET8)
                for (int r = 0; r < R; r++) {
                    int32_t sum = PARTS == 2 ? halves(r, 2 * g + part) : halves(r, 2 * g) + halves(r, 2 * g + 1);
                    c[r][0] = c[r][1] = (Sums)set1(-OFFSET8 * sum);
                }
#pragma GCC unroll 1
            for (int k = part * 4 / PARTS; k < (part + 1) * 4 / PARTS; k++)
#pragma GCC unroll 2
                for (int j = 0; j < 2; j++) {
                    vi w0 = four<BITS>(w, k, j), w1 = four<BITS>(w + VECTOR, k, j);
#pragma GCC unroll 12
                    for (int r = 0; r < R; r++) {
                        vi b = set1(x(r, (size_t)g * (GROUP / 4) + k * 2 + j));
                        if constexpr (BITS == 4) c[r][0] = dot8(c[r][0], w0, b), c[r][1] = dot8(c[r][1], w1, b);
                        else c[r][0] = dot8_signed(c[r][0], w0, b), c[r][1] = dot8_signed(c[r][1], w1, b);
                    }
                }
            vf d0 = HALF ? load_half(d) : load((const float *)d + part * PANEL);
            vf d1 = HALF ? load_half(d + 2 * LANES) : load((const float *)d + part * PANEL + LANES);
            for (int r = 0; r < R; r++) {
                float xs = scale(r, g);
                vi t0, t1;
                if constexpr (BITS == 4) t0 = total8(c[r][0]), t1 = total8(c[r][1]);
                else t0 = c[r][0], t1 = c[r][1];
                f[r][0] = fma(to_float(t0), d0 * xs, f[r][0]), f[r][1] = fma(to_float(t1), d1 * xs, f[r][1]);
            }
        }
        if (BITS == 4) {
            vf m0 = HALF ? load_half(d + 2 * PANEL) : load((const float *)d + PANEL);
            vf m1 = HALF ? load_half(d + 2 * PANEL + 2 * LANES) : load((const float *)d + PANEL + LANES);
            for (int r = 0; r < R; r++) {
                vf xm = set1(total(r, g));
                f[r][0] = fma(m0, xm, f[r][0]), f[r][1] = fma(m1, xm, f[r][1]);
            }
        }
    }
    for (int r = 0; r < R; r++) finish(s, out, row + r, panel, f[r][0], f[r][1]);
}

typedef void (*Tile)(const Segment &, const Activations &, int, int, const Out &);
template <int... I> static Tile tile_for(int format, bool int8, int rows, std::integer_sequence<int, I...>) {
    static const Tile tiles[][MOST_ROWS] = {
        {dense_tile<FLOAT32, I % ROWS_FLOAT32 + 1>...}, {dense_tile<BFLOAT16, I % ROWS_BFLOAT16 + 1>...},
        {grouped_tile<Q4_HALF, I % ROWS_GROUPED + 1>...}, {grouped_tile<Q4_FLOAT, I % ROWS_GROUPED + 1>...},
        {grouped_tile<Q8_HALF, I % ROWS_GROUPED + 1>...}, {grouped_tile<Q8_FLOAT16, I % ROWS_GROUPED + 1>...},
        {grouped8_tile<Q4_HALF, I % ROWS_GROUPED8 + 1>...}, {grouped8_tile<Q4_FLOAT, I % ROWS_GROUPED8 + 1>...},
        {grouped8_tile<Q8_HALF, I % ROWS_GROUPED8 + 1>...}, {grouped8_tile<Q8_FLOAT16, I % ROWS_GROUPED8 + 1>...}};
    return tiles[int8 ? format + 4 : format][rows - 1];
}

// Weights lie in the second-level cache and a tile's rows in the first, while the other is walked through.
void linear_part(const Linear &l, const Activations &a, int num_rows, const Out &out, int begin, int end) {
    constexpr int CACHED = 128 * 1024;              // bytes of weights, measured
    for (int i = 0, offset = 0; i < l.num_segments; offset += panels_of(l.segments[i++])) {
        const Segment &s = l.segments[i];
        bool int8 = takes_int8(l, s);
        int most = s.format == FLOAT32 ? ROWS_FLOAT32 : s.format == BFLOAT16 ? ROWS_BFLOAT16 : int8 ? ROWS_GROUPED8 : ROWS_GROUPED;
        int tiles = (num_rows + most - 1) / most, few = std::max(1, CACHED / (int)panel_bytes(s.format, s.inputs));
        int last = std::min(end - offset, panels_of(s));
        for (int first = std::max(0, begin - offset); first < last; first += few)
            for (int t = 0, r = 0; t < tiles; t++) {                // rows spread evenly over the tiles
                int n = (int)((long)num_rows * (t + 1) / tiles) - r;
                Tile tile = tile_for(s.format, int8, n, std::make_integer_sequence<int, MOST_ROWS>());
                for (int p = first; p < std::min(last, first + few); p++) tile(s, a, r, p, out);
                r += n;
            }
    }
}

}  // namespace ms
