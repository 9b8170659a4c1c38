// AVX2 with AVX-VNNI: the same 8 lanes, and a product and its sum are one instruction.
#pragma once
#define MS_VNNI
#include "isa_avx2.hpp"

namespace ms {

static inline vi dot16(vi acc, vi w, vi x) { return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
typedef vi Sum8;
static inline Sum8 dot8(Sum8 acc, vi w, vi x) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
static inline vi total8(Sum8 acc) { return acc; }
// Signed 8-bit weights go through the same instruction as w + 128; 128 times the sum of x is taken off beforehand.
constexpr int OFFSET8 = 128;
static inline vi signed8(vi w) { return w ^ (int32_t)0x80808080; }
static inline vi dot8_signed(vi acc, vi w, vi x) { return dot8(acc, w, x); }

}  // namespace ms
