// AVX512 with VNNI: 16 lanes, 32 registers.
#pragma once
#include <immintrin.h>
#define LANES 16
#include "lanes.hpp"

namespace ms {

constexpr int ROWS_FLOAT32 = 12, ROWS_BFLOAT16 = 12, ROWS_GROUPED = 6, ROWS_GROUPED8 = 6;

static inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
static inline vi nearest(vf v) { return (vi)_mm512_cvtps_epi32((__m512)v); }
static inline vf load_half(const void *p) { return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf load_bf16(const void *p) {
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
}
static inline vf load_int8(const void *p) {
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline void sum4(vf a, vf b, vf c, vf d, float *out) { out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d); }
static inline vi dot16(vi acc, vi w, vi x) { return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
typedef vi Sum8;
static inline Sum8 dot8(Sum8 acc, vi w, vi x) { return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x); }
static inline vi total8(Sum8 acc) { return acc; }
// Signed 8-bit weights go through the same instruction as w + 128; 128 times the sum of x is taken off beforehand.
constexpr int OFFSET8 = 128;
static inline vi signed8(vi w) { return w ^ (int32_t)0x80808080; }
static inline vi dot8_signed(vi acc, vi w, vi x) { return dot8(acc, w, x); }

}  // namespace ms
