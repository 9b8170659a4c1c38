// AVX2 with FMA and F16C: 8 lanes, 16 registers.
#pragma once
#include "intrinsics.hpp"
#define LANES 8
#include "lanes.hpp"

namespace ms {

// Rows of a register tile of 2 vectors: what 16 registers hold, and measured.
constexpr int ROWS_FLOAT32 = 6, ROWS_BFLOAT16 = 4, ROWS_GROUPED = 5, ROWS_GROUPED8 = 4;

static inline vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
static inline vi nearest(vf v) { return (vi)_mm256_cvtps_epi32((__m256)v); }
static inline vf load_half(const void *p) { return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vf load_bf16(const void *p) {
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
}
static inline vf load_int8(const void *p) {
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

// Four horizontal sums.  The order within a lane group is fixed by the instructions.
static inline void sum4(vf a, vf b, vf c, vf d, float *out) {
    __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b), cd = _mm256_hadd_ps((__m256)c, (__m256)d);
    __m256 s = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

#ifndef MS_VNNI
// acc[lane] += the two products of 16-bit numbers in that lane; exact.
static inline vi dot16(vi acc, vi w, vi x) {
    acc = (vi)_mm256_add_epi32((__m256i)acc, _mm256_madd_epi16((__m256i)w, (__m256i)x));
    asm("" : "+x"(acc));                            // GCC would add products first and keep them all on the stack
    return acc;
}
// Sums of unsigned 4-bit times signed 8-bit, four products a lane.  Eight steps fit 16 bits: 8 * 2 * 15 * 127 = 30,480.
typedef vi Sum8;
static inline Sum8 dot8(Sum8 acc, vi w, vi x) {
    acc = (vi)_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)w, (__m256i)x));
    asm("" : "+x"(acc));
    return acc;
}
static inline vi total8(Sum8 acc) { return (vi)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1)); }
// The same for signed 8-bit weights, exact in 32 bits: a pair is at most 2 * 128 * 127 = 32,512.
constexpr int OFFSET8 = 0;
static inline vi signed8(vi w) { return w; }
static inline vi dot8_signed(vi acc, vi w, vi x) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)w), _mm256_sign_epi8((__m256i)x, (__m256i)w));
    acc = (vi)_mm256_add_epi32((__m256i)acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    asm("" : "+x"(acc));
    return acc;
}
#endif

}  // namespace ms
