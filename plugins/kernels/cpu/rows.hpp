// What happens to single rows between the matrices: norms, rotation, quantisation.
#pragma once
#include "abi.hpp"
#include "intrinsics.hpp"
#include "vec.hpp"
#include <algorithm>

namespace ms {

constexpr int GROUP = 32;                           // inputs that share a scale, of weights and of activations
enum Need : int { FLOATS = 1, WORDS16 = 2, WORDS8 = 4 };

// Activation rows as matrices read them, in each of the forms that some segment wants.  16 bits: words (q[j], q[j + 4])
// of 8 inputs.  8 bits: words (q[0], q[2], q[4], q[6]) and (q[1], q[3], q[5], q[7]).  Both follow how nibbles come out
// of a packed word (linear.hpp).  A group's value is scale * q; sum is scale times the sum of its q.  halves8: the sums
// of q of each 16.
struct Activations {
    float *floats;
    int32_t *words16, *words8, *halves8;
    float *scale16, *sum16, *scale8, *sum8;
    int need, width, groups;                        // width: floats a row, a multiple of GROUP
};

static inline void quantise_group(const float *v, int most, int32_t *q, float &scale, float &total) {
    vf top = {}, odd = {};
    for (int i = 0; i < GROUP; i += LANES) {
        vf x = load(v + i);
        top = greater(top, magnitude(x));
        odd = fma(x, vf{}, odd);                    // NaN as soon as one is not finite
    }
    float m = largest(top), nan = sum(odd), inverse = m > 1e-30f ? most / m : 0.f;
    if (nan != 0.f) {                               // so the whole group is NaN, and no integer overflows
        memset(q, 0, GROUP * sizeof *q);
        scale = total = nan;
        return;
    }
    vi s = {};
    for (int i = 0; i < GROUP; i += LANES) {
        vi r = nearest(load(v + i) * inverse);
        s += r;
        memcpy(q + i, &r, sizeof r);
    }
    int32_t integers = 0;
    for (int i = 0; i < LANES; i++) integers += s[i];
    scale = m / most, total = scale * integers;
}

// 8 integers as words of 16 bits (q[j], q[j + 4]), and of 8 bits (q[0], q[2], q[4], q[6]) and (q[1], q[3], q[5], q[7]).
static inline __m128i load4(const int32_t *q) { return _mm_loadu_si128((const __m128i *)q); }
static inline void store_pairs(int32_t *to, const int32_t *q) {
    _mm_storeu_si128((__m128i *)to, _mm_blend_epi16(load4(q), _mm_slli_epi32(load4(q + 4), 16), 0xaa));
}
static inline void store_fours(int32_t *to, const int32_t *q) {
    __m128i order = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm_storel_epi64((__m128i *)to, _mm_shuffle_epi8(_mm_packs_epi32(load4(q), load4(q + 4)), order));
}

// v: width floats, zero behind the inputs.
[[gnu::noinline]] static inline void store_activation_row(const float *v, const Activations &a, int row) {
    if (a.need & FLOATS) memcpy(a.floats + (size_t)row * a.width, v, 4 * (size_t)a.width);
    int32_t q[GROUP];
    for (int g = 0; g < a.groups; g++) {
        size_t at = (size_t)row * a.groups + g;
        if (a.need & WORDS16) {
            quantise_group(v + g * GROUP, 32767, q, a.scale16[at], a.sum16[at]);
            for (int i = 0; i < GROUP; i += 8) store_pairs(a.words16 + at * (GROUP / 2) + i / 2, q + i);
        }
        if (a.need & WORDS8) {
            quantise_group(v + g * GROUP, 127, q, a.scale8[at], a.sum8[at]);
            for (int i = 0; i < GROUP; i += 8) store_fours(a.words8 + at * (GROUP / 4) + i / 4, q + i);
            for (int half = 0; OFFSET8 && half < 2; half++) {
                int32_t sum = 0;
                for (int i = 0; i < GROUP / 2; i++) sum += q[half * GROUP / 2 + i];
                a.halves8[2 * at + half] = sum;
            }
        }
    }
}

// y = x * w / rms(x); x and y have room for whole vectors, zero behind n.
static inline void rms_norm_row(const float *x, const float *w, int n, float eps, float *y) {
    vf s = {};
    int whole = n / LANES * LANES;
    for (int k = 0; k < whole; k += LANES) { vf v = load(x + k); s = fma(v, v, s); }
    float total = sum(s);
    for (int k = whole; k < n; k++) total = std::fma(x[k], x[k], total);
    float f = 1.f / std::sqrt(total / n + eps);
    for (int k = 0; k < whole; k += LANES) store(y + k, load(x + k) * f * load(w + k));
    for (int k = whole; k < n; k++) y[k] = x[k] * f * w[k];
}

static inline void silu_mul_row(const float *gate, const float *up, int n, float *y) {
    int whole = n / LANES * LANES;
    for (int k = 0; k < whole; k += LANES) store(y + k, silu(load(gate + k)) * load(up + k));
    if (whole == n) return;
    alignas(4 * LANES) float g[LANES] = {}, u[LANES] = {};
    memcpy(g, gate + whole, 4 * (n - whole)), memcpy(u, up + whole, 4 * (n - whole));
    store(g, silu(load(g)) * load(u));
    memcpy(y + whole, g, 4 * (n - whole));
}

// Rotates one head in place: halves (a, b) become (a cos - b sin, b cos + a sin).
static inline void rotate_head(float *x, int half, const float *cos, const float *sin) {
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        vf a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(x + i, fma(a, c, -(b * s))), store(x + half + i, fma(b, c, a * s));
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = std::fma(a, cos[i], -(b * sin[i])), x[half + i] = std::fma(b, cos[i], a * sin[i]);
    }
}

}  // namespace ms
