// Vectors of LANES 32-bit lanes and what can be said about them without naming an instruction.
// Included by the file of an instruction set, which defines LANES first and adds what only it can do.
#pragma once
#include <cstdint>
#include <cstring>

namespace ms {

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(4 * LANES)));   // the same bits as pairs of 16
typedef int16_t vs __attribute__((vector_size(4 * LANES)));
typedef float unaligned_vf __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t unaligned_vi __attribute__((vector_size(4 * LANES), aligned(1)));

static inline vf set1(float x) { return x - vf{}; }               // x - 0 is x; 0 + x would be an addition
static inline vi set1(int32_t x) { return vi{} + x; }
static inline vf load(const float *p) { return *(const unaligned_vf *)p; }
static inline vi load_words(const void *p) { return *(const unaligned_vi *)p; }
static inline void store(float *p, vf v) { *(unaligned_vf *)p = v; }
static inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }
static inline vf greater(vf a, vf b) { return a > b ? a : b; }
static inline vf lesser(vf a, vf b) { return a < b ? a : b; }
static inline vf magnitude(vf a) { return (vf)((vi)a & 0x7fffffff); }
static inline float bits_to_float(uint32_t bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline uint32_t float_to_bits(float f) { uint32_t bits; memcpy(&bits, &f, 4); return bits; }

// Horizontal results go through memory in a fixed order: they are rare, and then equal on every path.
template <class F> static inline float fold(vf v, F f) {
    alignas(4 * LANES) float a[LANES];
    store(a, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) a[i] = f(a[i], a[i + half]);
    return a[0];
}
static inline float sum(vf v) { return fold(v, [](float a, float b) { return a + b; }); }
static inline float largest(vf v) { return fold(v, [](float a, float b) { return a > b ? a : b; }); }

static inline uint16_t to_bf16(float f) {                       // nearest, ties to even; NaN stays NaN
    uint32_t u = float_to_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)((u >> 16) | 0x40);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float from_bf16(uint16_t b) { return bits_to_float((uint32_t)b << 16); }

}  // namespace ms
