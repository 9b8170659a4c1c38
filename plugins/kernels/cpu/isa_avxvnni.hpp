// AVX2 with AVX-VNNI: the same 8 lanes, and a product and its sum are one instruction.
#pragma once
#define MS_VNNI
#include "isa_avx2.hpp"

namespace ms {

static inline vi dot16(vi acc, vi w, vi x) { return (vi)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
typedef vi Sum8;
static inline Sum8 dot8(Sum8 acc, vi w, vi x) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x); }
static inline vi total8(Sum8 acc) { return acc; }

}  // namespace ms
