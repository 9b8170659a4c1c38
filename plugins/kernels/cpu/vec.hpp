// The instruction set chosen by the build (MS_ISA_FILE), and the functions that follow from it.
// Products that are added are always written as fma(): the compiler fuses nothing by itself (-ffp-contract=off), so the
// same row gives the same bits in every tile.
#pragma once
#include MS_ISA_FILE
#include <cmath>

namespace ms {

constexpr float ROUND = 12582912.f;                 // 1.5 * 2^23: adding it rounds to the nearest integer

static inline vf polynomial(vf r, const float (&c)[6], vf last) {
    vf p = set1(c[0]);
    for (int i = 1; i < 6; i++) p = fma(p, r, set1(c[i]));
    return fma(p, r, last);
}
static inline vf scale_by_power(vf p, vf rounded) {  // p * 2^n, rounded = n + ROUND
    return (vf)((vi)p + (((vi)rounded - 0x4b400000) << 23));
}

// 2^x for x <= 0 with a relative error below 2e-7 (Taylor series of 2^r on [-1/2, 1/2]); 0 below -126.
static inline vf exp2_negative(vf x) {
    static const float c[6] = {1.5403530e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f};
    vf y = greater(x, set1(-126.f)), t = y + ROUND, r = y - (t - ROUND);
    vf e = scale_by_power(polynomial(r, c, set1(1.f)), t);
    return x < -126.f ? vf{} : e;
}

// e^x with a relative error below 2e-7 (Taylor series after taking off n ln 2 in two parts), within [-87, 88].
static inline vf exp_clamped(vf x) {
    static const float c[6] = {1.9841270e-4f, 1.3888889e-3f, 8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 5.0e-1f};
    vf y = lesser(greater(x, set1(-87.f)), set1(88.f)), t = fma(y, set1(1.44269504f), set1(ROUND)), n = t - ROUND;
    vf r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), y));
    vf p = fma(polynomial(r, c, set1(1.f)), r, set1(1.f));
    return scale_by_power(p, t);
}
static inline vf silu(vf x) { return x / (exp_clamped(-x) + 1.f) + (x - x); }      // the last term keeps NaN and inf - inf

static inline int rounded_up(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace ms
