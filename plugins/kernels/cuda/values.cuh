// Numbers of every storage type as floats and back, four or sixteen at a time.
#include "intrin.cuh"

DEVICE float float_of(float x) { return x; }
DEVICE float float_of(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
template <class T> struct To;  // To<T>::from(float), rounded to nearest even
template <> struct To<float> { static DEVICE float from(float x) { return x; } };
template <> struct To<f16> { static DEVICE f16 from(float x) { return f16_of(x); } };
template <> struct To<bf16> { static DEVICE bf16 from(float x) { return bf16_of(x); } };

// ---- pairs
DEVICE float2 pair_of(u32 v, bf16) { return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)); }
DEVICE float2 pair_of(u32 v, f16) {
  f16 low, high;
  low.bits = u16(v), high.bits = u16(v >> 16);
  return make_float2(float_of(low), float_of(high));
}
template <class T> DEVICE float2 load_pair(const T* p) { return pair_of(*(const u32*)p, T()); }
DEVICE float2 load_pair(const float* p) { return *(const float2*)p; }
template <class T> DEVICE void store_pair(T* p, float low, float high) { *(u32*)p = pack2(low, high, T()); }
DEVICE void store_pair(float* p, float low, float high) { *(float2*)p = make_float2(low, high); }

// ---- four elements: 16, 8 or 4 bytes
template <class T> struct Four { typedef uint2 Raw; };
template <> struct Four<float> { typedef uint4 Raw; };
template <> struct Four<i8> { typedef u32 Raw; };
DEVICE float4 four_of(uint4 v, float) {
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
template <class T> DEVICE float4 four_of(uint2 v, T) {
  float2 a = pair_of(v.x, T()), b = pair_of(v.y, T());
  return make_float4(a.x, a.y, b.x, b.y);
}
DEVICE float4 four_of(u32 v, i8) {
  return make_float4(float(i8(v)), float(i8(v >> 8)), float(i8(v >> 16)), float(i8(v >> 24)));
}
template <class T> DEVICE float4 load_four(const T* p) { return four_of(*(const typename Four<T>::Raw*)p, T()); }
template <class T> DEVICE void store_four(T* p, float4 v) {
  *(uint2*)p = make_uint2(pack2(v.x, v.y, T()), pack2(v.z, v.w, T()));
}
DEVICE void store_four(float* p, float4 v) { *(float4*)p = v; }

// sum + a . b as four fused products
DEVICE float dot_add(float sum, float4 a, float4 b) {
  sum += a.x * b.x;
  sum += a.y * b.y;
  sum += a.z * b.z;
  return sum + a.w * b.w;
}

// ---- signed bytes LOW and HIGH of v as a pair of 16-bit floats, exactly
template <int LOW, int HIGH> DEVICE u32 widen2(u32 v, f16) {  // 0x64xx is 1024 + xx
  return subtract2(byte_permute(v ^ 0x80808080u, 0x64646464u, LOW | 4 << 4 | HIGH << 8 | 4 << 12), 0x64806480u, f16());
}
template <int LOW, int HIGH> DEVICE u32 widen2(u32 v, bf16) {  // 0x43xx is 128 + xx up to 0x7f; the sign bit goes apart
  u32 bytes = byte_permute(v, 0x43434343u, LOW | 4 << 4 | HIGH << 8 | 4 << 12);
  return subtract2(bytes & 0xff7fff7fu, bytes & 0xff80ff80u, bf16());
}
