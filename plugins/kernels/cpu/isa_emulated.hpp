// The 16 lanes of AVX512 VNNI in plain C++: its layout and control flow run in the tests of any machine, slowly.
#pragma once
#include <cmath>
#define LANES 16
#include "lanes.hpp"

namespace ms {

constexpr int ROWS_FLOAT32 = 12, ROWS_BFLOAT16 = 12, ROWS_GROUPED = 6, ROWS_GROUPED8 = 6;

static inline vf fma(vf a, vf b, vf c) {
    for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
static inline vi nearest(vf v) {
    vi out;
    for (int i = 0; i < LANES; i++) out[i] = v[i] == v[i] && std::fabs(v[i]) < 2e9f ? (int32_t)std::nearbyint(v[i]) : INT32_MIN;
    return out;
}
static inline vf load_half(const void *p) {
    vf out;
    for (int i = 0; i < LANES; i++) { _Float16 h; memcpy(&h, (const char *)p + 2 * i, 2); out[i] = (float)h; }
    return out;
}
static inline vf load_bf16(const void *p) {
    vf out;
    for (int i = 0; i < LANES; i++) { uint16_t h; memcpy(&h, (const char *)p + 2 * i, 2); out[i] = from_bf16(h); }
    return out;
}
static inline vf load_int8(const void *p) {
    vf out;
    for (int i = 0; i < LANES; i++) out[i] = ((const int8_t *)p)[i];
    return out;
}
static inline void sum4(vf a, vf b, vf c, vf d, float *out) { out[0] = sum(a), out[1] = sum(b), out[2] = sum(c), out[3] = sum(d); }
static inline vi dot16(vi acc, vi w, vi x) {
    for (int i = 0; i < LANES; i++) acc[i] += (int16_t)w[i] * (int16_t)x[i] + (w[i] >> 16) * (x[i] >> 16);
    return acc;
}
typedef vi Sum8;
static inline Sum8 dot8(Sum8 acc, vi w, vi x) {
    for (int j = 0; j < 4; j++) acc += ((w >> (8 * j)) & 255) * ((x << (24 - 8 * j)) >> 24);
    return acc;
}
static inline vi total8(Sum8 acc) { return acc; }
// Signed 8-bit weights go through the same instruction as w + 128; 128 times the sum of x is taken off beforehand.
constexpr int OFFSET8 = 128;
static inline vi signed8(vi w) { return w ^ (int32_t)0x80808080; }
static inline vi dot8_signed(vi acc, vi w, vi x) { return dot8(acc, w, x); }

}  // namespace ms
