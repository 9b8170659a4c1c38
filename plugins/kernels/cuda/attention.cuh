// What all attention kernels share: where a token lies, which tokens a row sees, how a score becomes a weight.
//
// The pool of one layer: keys and values apart, [num_blocks, num_kv_heads, BS, D]; int8 pools have one float32 scale
// per token and head beside them, [num_blocks, num_kv_heads, BS].  Scores are kept in powers of two.
#include "values.cuh"

enum Flags { WINDOW = 1, SOFTCAP = 2 };
#define MASKED (-1e30f)
// What a row's weights are relative to follows its best score only when that is so many powers of two ahead: after the
// first tokens that is rare, and rescaling costs as much as the products.  A weight is at most 2^6 then, and times the
// scale of an int8 value still less than an f16 holds.
#define GROWTH 6.f

template <class A, class B> struct Same { static constexpr bool value = false; };
template <class A> struct Same<A, A> { static constexpr bool value = true; };

// Row of a token in the pool, in units of heads: times D the element, as it is the scale.
template <int BS> DEVICE i64 pool_row(const int* table, int token, int num_kv_heads, int kv_head) {
  return ((i64)table[token / BS] * num_kv_heads + kv_head) * BS + token % BS;
}

// Tokens [begin, end) of one split; those before `visible` are hidden by the window or were attended to elsewhere.
struct Span { int begin, end, visible; };
template <int FLAGS>
DEVICE Span split_span(int length, int first, int window, int split, int num_splits, int min_split) {
  Span span;
  span.visible = FLAGS & WINDOW ? max(first, length - window) : first;
  int from = span.visible & ~15;
  int size = max(min_split, (length - from + num_splits - 1) / num_splits);
  size = (size + 15) & ~15;
  // A split that begins behind the end is empty; computed so that nothing overflows.
  span.begin = split <= (length - from) / size ? from + split * size : length;
  span.end = min(length, span.begin + size);
  return span;
}

// Dot product -> exponent of two.  Plain: in_scale = scale * log2(e).  Soft cap: in_scale = scale / cap, out_scale =
// cap * log2(e).
template <int FLAGS, class T> DEVICE float exponent_of(float dot, float in_scale, float out_scale) {
  float x = dot * in_scale;
  if constexpr ((FLAGS & SOFTCAP) != 0) {
    if constexpr (Same<T, float>::value) return tanhf(x) * out_scale;
    return (1.f - __fdividef(2.f, 1.f + exp2_fast(x * 2.885390082f))) * out_scale;  // 2 * log2(e)
  }
  return x;
}

// Where a row's result goes: straight out, or as one of num_slots parts (o / l, m, l) for the reduction.
template <class T, int D>
DEVICE void store_result(T* out, float* part_out, float2* part_ml, i64 out_row, i64 part_row, int slot, int num_slots, int d,
                         float o, float m, float l) {
  float value = l > 0.f ? o / l : 0.f;
  if (num_slots == 1) {
    out[out_row * D + d] = To<T>::from(value);
    return;
  }
  part_out[(part_row * num_slots + slot) * D + d] = value;
  if (d == 0) part_ml[part_row * num_slots + slot] = make_float2(m, l);
}
