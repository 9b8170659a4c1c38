// Matrices times a few rows.  One layout for all: panels of PANEL = 2 * LANES outputs, so that the inner loop is
// acc[outputs] += product(vector of weights, broadcast word of a row), without horizontal sums.
//
//   FLOAT32   [input][PANEL floats]          BFLOAT16  [pair of inputs][PANEL words of two]
//   grouped   per 32 inputs the integers, then d [PANEL], then m [PANEL] where there is one
//     4 bits  4 x [PANEL words of 8 nibbles]: nibble i of word w is input 8 w + i
//     8 bits  8 x [PANEL words of 4 bytes]: word 2 w holds inputs 8 w + (0, 2, 4, 6), word 2 w + 1 (1, 3, 5, 7)
//
// So a 4-bit word shifted by 4 j and masked is the pair (j, j + 4) in 16 bits, an 8-bit word gives pairs likewise, and
// the 4-bit word masked to bytes is what the 8-bit words are: the orders in which rows.hpp lays out activations.
#pragma once
#include "rows.hpp"
#include "source.hpp"

namespace ms {

constexpr int PANEL = 2 * LANES, VECTOR = 4 * LANES;        // outputs of a panel, bytes of a vector

static inline int bits_of(int format) { return format == Q4_HALF || format == Q4_FLOAT ? 4 : 8; }
static inline int scale_bytes(int format) {                 // of one group of a panel
    return PANEL * (format == Q4_HALF ? 4 : format == Q8_HALF ? 2 : 8);
}
static inline size_t group_bytes(int format) { return (size_t)PANEL * GROUP * bits_of(format) / 8 + scale_bytes(format); }
static inline size_t panel_bytes(int format, int inputs) {
    if (format == FLOAT32) return (size_t)inputs * PANEL * 4;
    if (format == BFLOAT16) return (size_t)(inputs + 1) / 2 * PANEL * 4;
    return (size_t)(inputs + GROUP - 1) / GROUP * group_bytes(format);
}
static inline int panels_of(const Segment &s) { return (s.outputs + PANEL - 1) / PANEL; }
static inline int panels_of(const Linear &l) {
    int n = 0;
    for (int i = 0; i < l.num_segments; i++) n += panels_of(l.segments[i]);
    return n;
}
static inline bool takes_int8(const Linear &l, const Segment &s) { return l.int8_activations && s.format > BFLOAT16; }
static inline int need_of(const Linear &l) {
    int need = 0;
    for (int i = 0; i < l.num_segments; i++) {
        const Segment &s = l.segments[i];
        need |= s.format <= BFLOAT16 ? FLOATS : takes_int8(l, s) ? WORDS8 : WORDS16;
    }
    return need;
}

// ---------------------------------------------------------------- packing

static inline uint16_t to_half(float f) { _Float16 h = (_Float16)f; uint16_t b; memcpy(&b, &h, 2); return b; }

// 32 floats as 4 bits with d and m, or 8 bits with d, both rounded to half precision before the integers are chosen.
// Where one is not finite nothing of the group is.
[[gnu::noinline]] static inline Group32 quantise_weights(const float *v, int bits) {
    Group32 g;
    vf low = load(v), high = low, odd = {};
    for (int i = 0; i < GROUP; i += LANES) {
        vf x = load(v + i);
        low = lesser(low, x), high = greater(high, x), odd = fma(x, vf{}, odd);
    }
    float least = -largest(-low), most = largest(high), nan = sum(odd);
    g.m = bits == 4 ? (float)(_Float16)least : 0.f;
    float d = (float)(_Float16)(bits == 4 ? (most - g.m) / 15 : std::max(-least, most) / 127) + nan;
    vi lowest = set1(bits == 4 ? 0 : -127), highest = set1(bits == 4 ? 15 : 127);
    for (int i = 0; i < GROUP; i += LANES) {
        vi q = d > 0 ? nearest((load(v + i) - g.m) / d) : vi{};
        q = q < lowest ? lowest : q > highest ? highest : q;
        memcpy(g.q + i, &q, sizeof q);
    }
    g.d[0] = g.d[1] = d;
    return g;
}

static inline void put_group(char *at, int format, int j, const Group32 &g) {
    int v = j / LANES, lane = j % LANES;
    auto word = [&](int index) { return (uint8_t *)at + ((size_t)index * 2 + v) * VECTOR + lane * 4; };
    if (bits_of(format) == 4) {
        for (int w = 0; w < 4; w++) {
            uint32_t bits = 0;
            for (int i = 0; i < 8; i++) bits |= (uint32_t)(g.q[w * 8 + i] & 15) << (4 * i);
            memcpy(word(w), &bits, 4);
        }
    } else {
        for (int w = 0; w < 4; w++)
            for (int h = 0; h < 2; h++) {
                const int32_t *q = g.q + w * 8 + h;
                uint8_t b[4] = {(uint8_t)q[0], (uint8_t)q[2], (uint8_t)q[4], (uint8_t)q[6]};
                memcpy(word(2 * w + h), b, 4);
            }
    }
    char *scales = at + (size_t)PANEL * GROUP * bits_of(format) / 8;
    if (format == Q4_HALF || format == Q8_HALF) {
        uint16_t d = to_half(g.d[0]), m = to_half(g.m);
        memcpy(scales + 2 * j, &d, 2);
        if (format == Q4_HALF) memcpy(scales + 2 * (PANEL + j), &m, 2);
    } else {
        float second = format == Q4_FLOAT ? g.m : g.d[1];
        memcpy(scales + 4 * j, &g.d[0], 4), memcpy(scales + 4 * (PANEL + j), &second, 4);
    }
}

// Output `output` of a segment, from a row as it came.  Panels begin as zeros.
[[gnu::noinline]] static inline void pack_row(const Segment &s, int output, int source, const void *row, float *scratch) {
    char *panel = (char *)s.weights + panel_bytes(s.format, s.inputs) * (output / PANEL);
    int j = output % PANEL, groups = (s.inputs + GROUP - 1) / GROUP;
    bool blocks = source >= SRC_Q4_0;
    if (!blocks || s.format <= BFLOAT16) {
        read_row(source, row, s.inputs, scratch);
        std::fill(scratch + s.inputs, scratch + groups * GROUP, 0.f);
    }
    if (s.format == FLOAT32)
        for (int k = 0; k < s.inputs; k++) memcpy(panel + ((size_t)k * PANEL + j) * 4, scratch + k, 4);
    else if (s.format == BFLOAT16)
        for (int k = 0; k < s.inputs; k++) {
            uint16_t b = to_bf16(scratch[k]);
            memcpy(panel + ((size_t)(k / 2) * PANEL + j) * 4 + k % 2 * 2, &b, 2);
        }
    else
        for (int g = 0; g < groups; g++)
            put_group(panel + g * group_bytes(s.format), s.format, j,
                      blocks ? read_group(source, (const uint8_t *)row, g) : quantise_weights(scratch + g * GROUP, bits_of(s.format)));
}

struct Out {                                        // where results go; add: onto what is there
    float *data;
    size_t stride;
    bool add;
};

// Panels [begin, end) of the matrix, for all rows (linear.cpp).
void linear_part(const Linear &l, const Activations &a, int num_rows, const Out &out, int begin, int end);

}  // namespace ms
