// Reading weights as they come: numbers, or the blocks of GGML files.  Layouts as the GGUF specification gives them.
#pragma once
#include "abi.hpp"
#include "vec.hpp"

namespace ms {

static inline float half_at(const uint8_t *p) { _Float16 h; memcpy(&h, p, 2); return (float)h; }

// 32 inputs of one output: value = d[i / 16] * q[i] + m.
struct Group32 { int32_t q[32]; float d[2], m; };

static inline void scale_and_min(const uint8_t *packed, int j, int &scale, int &min) {      // 6 bits each, of Q4_K
    if (j < 4) scale = packed[j] & 63, min = packed[j + 4] & 63;
    else scale = (packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4), min = (packed[j + 4] >> 4) | (packed[j] >> 6 << 4);
}

// Group g of a row of blocks; only for the block types.  (Not inlined, like others that many places call: to compile them
// once instead of everywhere saves a fifth of the first build.)
[[gnu::noinline]] static inline Group32 read_group(int source, const uint8_t *row, int g) {
    Group32 out;
    out.m = 0;
    auto nibbles = [&](const uint8_t *q) { for (int i = 0; i < 16; i++) out.q[i] = q[i] & 15, out.q[i + 16] = q[i] >> 4; };
    if (source == SRC_Q4_0) {
        const uint8_t *b = row + (size_t)g * 18;
        out.d[0] = half_at(b), out.m = -8 * out.d[0];
        nibbles(b + 2);
    } else if (source == SRC_Q4_1) {
        const uint8_t *b = row + (size_t)g * 20;
        out.d[0] = half_at(b), out.m = half_at(b + 2);
        nibbles(b + 4);
    } else if (source == SRC_Q8_0) {
        const uint8_t *b = row + (size_t)g * 34;
        out.d[0] = half_at(b);
        for (int i = 0; i < 32; i++) out.q[i] = (int8_t)b[2 + i];
    } else if (source == SRC_Q4_K) {
        const uint8_t *b = row + (size_t)(g / 8) * 144, *q = b + 16 + g % 8 / 2 * 32;
        int scale, min;
        scale_and_min(b + 4, g % 8, scale, min);
        out.d[0] = half_at(b) * scale, out.m = -(half_at(b + 2) * min);
        for (int i = 0; i < 32; i++) out.q[i] = g % 2 ? q[i] >> 4 : q[i] & 15;
    } else {                                        // SRC_Q6_K
        const uint8_t *b = row + (size_t)(g / 8) * 210, *low = b + g % 8 / 4 * 64 + g % 2 * 32, *high = b + 128 + g % 8 / 4 * 32;
        const int8_t *scales = (const int8_t *)(b + 192) + g % 8 * 2;
        float d = half_at(b + 208);
        for (int i = 0; i < 32; i++) {
            int l = g % 4 / 2 ? low[i] >> 4 : low[i] & 15;
            out.q[i] = (l | (high[i] >> (g % 4 * 2) & 3) << 4) - 32;
        }
        out.d[0] = d * scales[0], out.d[1] = d * scales[1];
        return out;
    }
    out.d[1] = out.d[0];
    return out;
}

// A whole row as floats.
[[gnu::noinline]] static inline void read_row(int source, const void *row, int width, float *out) {
    if (source == SRC_F32) { memcpy(out, row, 4 * (size_t)width); return; }
    for (int k = 0; k < width && (source == SRC_F16 || source == SRC_BF16); k++) {
        const uint8_t *p = (const uint8_t *)row + 2 * (size_t)k;
        uint16_t b;
        memcpy(&b, p, 2);
        out[k] = source == SRC_F16 ? half_at(p) : from_bf16(b);
    }
    if (source == SRC_F16 || source == SRC_BF16) return;
    for (int k = 0; k < width; k += 32) {
        Group32 g = read_group(source, (const uint8_t *)row, k / 32);
        for (int i = 0; i < 32; i++) out[k + i] = g.d[i / 16] * (float)g.q[i] + g.m;
    }
}

}  // namespace ms
