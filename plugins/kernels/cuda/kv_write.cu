// Keys and values into the pool, with or without the rotation of queries and keys.
//
// One block per token, one warp per head at a time; a lane holds the pairs (i, i + 1) and (i + D/2, i + 1 + D/2).  A slot
// that is negative or outside the pool belongs to padding and is not written.
#include "attention.cuh"

template <class T, int D> struct Head { static constexpr int EACH = (D / 4 + 31) / 32; };  // quadruples a lane holds

// One head of one token into the pool; every lane of the warp calls it.
template <class T, class KT, int D>
DEVICE void put_head(KT* pool, float* scales, i64 row, float4 (&x)[Head<T, D>::EACH], int lane) {
  constexpr int E = Head<T, D>::EACH;
  if constexpr (Same<KT, i8>::value) {
    float most = 0.f;
    bool broken = false;
#pragma unroll
    for (int e = 0; e < E; e++)
      if (lane + e * 32 < D / 4) {
        x[e] = make_float4(float_of(To<T>::from(x[e].x)), float_of(To<T>::from(x[e].y)), float_of(To<T>::from(x[e].z)), float_of(To<T>::from(x[e].w)));
        most = fmaxf(most, fmaxf(fmaxf(fabsf(x[e].x), fabsf(x[e].y)), fmaxf(fabsf(x[e].z), fabsf(x[e].w))));
        broken |= x[e].x != x[e].x || x[e].y != x[e].y || x[e].z != x[e].z || x[e].w != x[e].w;
      }
#pragma unroll
    for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, s));
    if (__any_sync(0xffffffffu, broken)) most = __uint_as_float(0x7fc00000u);  // a row of nonsense stays one
    const float scale = __fdiv_rn(most, 127.f), divisor = fmaxf(scale, 1.17549435e-38f);
    if (lane == 0) scales[row] = scale;
#pragma unroll
    for (int e = 0; e < E; e++)
      if (int i = (lane + e * 32) * 2; i < D / 2) {
        // A NaN as a code is zero: its scale says what it is.
        u32 a = u32(__float2int_rn(__fdiv_rn(x[e].x, divisor))) & 255u, b = u32(__float2int_rn(__fdiv_rn(x[e].y, divisor))) & 255u;
        u32 c = u32(__float2int_rn(__fdiv_rn(x[e].z, divisor))) & 255u, d = u32(__float2int_rn(__fdiv_rn(x[e].w, divisor))) & 255u;
        *(u16*)(pool + row * D + i) = u16(a | b << 8);
        *(u16*)(pool + row * D + i + D / 2) = u16(c | d << 8);
      }
  } else {
#pragma unroll
    for (int e = 0; e < E; e++)
      if (int i = (lane + e * 32) * 2; i < D / 2) {
        store_pair(pool + row * D + i, x[e].x, x[e].y);
        store_pair(pool + row * D + i + D / 2, x[e].z, x[e].w);
      }
  }
}

template <class T, int D> DEVICE void get_head(float4 (&x)[Head<T, D>::EACH], const T* head, int lane) {
#pragma unroll
  for (int e = 0; e < Head<T, D>::EACH; e++)
    if (int i = (lane + e * 32) * 2; i < D / 2) {
      float2 low = load_pair(head + i), high = load_pair(head + i + D / 2);
      x[e] = make_float4(low.x, low.y, high.x, high.y);
    }
}

template <int BS> DEVICE i64 slot_row(int slot, int num_kv_heads, int kv_head) {
  return ((i64)(slot / BS) * num_kv_heads + kv_head) * BS + slot % BS;
}

template <class T, class KT, int D, int BS>
KERNEL kv_write(const T* __restrict__ k, const T* __restrict__ v, KT* __restrict__ keys, KT* __restrict__ values,
                float* __restrict__ key_scales, float* __restrict__ value_scales, const int* __restrict__ slots, int num_kv_heads,
                i64 stride, int num_slots) {
  const int slot = slots[blockIdx.x], lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  if (slot < 0 || slot >= num_slots) return;
  for (int h = threadIdx.x >> 5; h < 2 * num_kv_heads; h += warps) {
    const bool key = h < num_kv_heads;
    const int head = key ? h : h - num_kv_heads;
    float4 x[Head<T, D>::EACH];
    get_head<T, D>(x, (key ? k : v) + blockIdx.x * stride + (i64)head * D, lane);
    put_head<T, KT, D>(key ? keys : values, key ? key_scales : value_scales, slot_row<BS>(slot, num_kv_heads, head), x, lane);
  }
}

// qkv: [tokens, num_heads + 2 * num_kv_heads, D]; queries are rotated in place, keys on their way into the pool.
template <class T, class KT, int D, int BS>
KERNEL rope_write(T* __restrict__ qkv, const float* __restrict__ cosines, const float* __restrict__ sines,
                  const int* __restrict__ positions, const int* __restrict__ slots, KT* __restrict__ keys, KT* __restrict__ values,
                  float* __restrict__ key_scales, float* __restrict__ value_scales, int num_heads, int num_kv_heads, i64 stride,
                  int num_slots) {
  constexpr int E = Head<T, D>::EACH;
  const int slot = slots[blockIdx.x], lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  const bool kept = slot >= 0 && slot < num_slots;
  const i64 angle = (i64)positions[blockIdx.x] * (D / 2);
  T* token = qkv + blockIdx.x * stride;
  for (int h = threadIdx.x >> 5; h < num_heads + 2 * num_kv_heads; h += warps) {
    if (h >= num_heads && !kept) return;
    float4 x[E];
    get_head<T, D>(x, token + (i64)h * D, lane);
    if (h < num_heads + num_kv_heads) {
#pragma unroll
      for (int e = 0; e < E; e++)
        if (int i = (lane + e * 32) * 2; i < D / 2) {
          float2 c = *(const float2*)(cosines + angle + i), s = *(const float2*)(sines + angle + i);
          float4 y = x[e];
          x[e] = make_float4(y.x * c.x - y.z * s.x, y.y * c.y - y.w * s.y, y.z * c.x + y.x * s.x, y.w * c.y + y.y * s.y);
          if (h < num_heads) {
            store_pair(token + (i64)h * D + i, x[e].x, x[e].y);
            store_pair(token + (i64)h * D + i + D / 2, x[e].z, x[e].w);
          }
        }
    }
    if (h < num_heads) continue;
    const bool key = h < num_heads + num_kv_heads;
    const int head = h - num_heads - (key ? 0 : num_kv_heads);
    put_head<T, KT, D>(key ? keys : values, key ? key_scales : value_scales, slot_row<BS>(slot, num_kv_heads, head), x, lane);
  }
}
