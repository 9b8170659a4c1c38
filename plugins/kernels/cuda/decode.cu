// One query token per row, on CUDA cores: any type of activations, any type of pool, any block size.
//
// grid (num_kv_heads * head blocks, rows, splits), NW warps.  A block serves up to GB query heads of one key/value head, so
// that keys and values leave memory once.  L lanes share a token; a warp takes 32 / L tokens a step, U steps are in
// flight.  Every group of lanes keeps its own running softmax (m, l, o); they merge by shuffles and shared memory.
#include "attention.cuh"

template <int D> struct Lanes {
  static constexpr int CHUNKS = D / 4;
  static constexpr int L = CHUNKS % 32 == 0 ? 32 : CHUNKS % 16 == 0 ? 16 : CHUNKS % 8 == 0 ? 8 : 4;
  static constexpr int EACH = CHUNKS / L;  // chunks of four a lane holds
};

template <class T, class KT, int D, int BS, int GB, int NW, int U, int FLAGS>
KERNEL __launch_bounds__(NW * 32, 1) decode(
    T* __restrict__ out, float* __restrict__ part_out, float2* __restrict__ part_ml, const T* __restrict__ q,
    const KT* __restrict__ keys, const KT* __restrict__ values, const float* __restrict__ key_scales,
    const float* __restrict__ value_scales, const int* __restrict__ tables, const int* __restrict__ lengths,
    const int2* __restrict__ entries, const int* __restrict__ firsts, int table_width, int num_kv_heads, int group, i64 q_stride,
    float in_scale, float out_scale, int window, int min_split, int first_slot, int num_slots) {
  constexpr int L = Lanes<D>::L, E = Lanes<D>::EACH, TOKENS = 32 / L;
  constexpr bool SCALED = Same<KT, i8>::value;
  typedef typename Four<KT>::Raw Raw;
  const int head_blocks = (group + GB - 1) / GB;
  const int kv_head = blockIdx.x / head_blocks, head0 = blockIdx.x % head_blocks * GB, heads = min(GB, group - head0);
  const int2 entry = entries ? entries[blockIdx.y] : make_int2(blockIdx.y, blockIdx.y);
  const int length = lengths[entry.x];
  const Span span = split_span<FLAGS>(length, firsts ? firsts[blockIdx.y] : 0, window, blockIdx.z, gridDim.z, min_split);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);  // tells the compiler that the warp's loop is one
  const int lane = threadIdx.x & 31, sub = lane / L, at = lane % L * 4;
  const int num_heads = num_kv_heads * group, first_head = kv_head * group + head0;
  const int* table = tables + (i64)entry.x * table_width;
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  float* merge_o = carve.take<float>(NW * GB * D);
  float2* merge_ml = carve.take<float2>(NW * GB);

  float4 query[GB][E], o[GB][E];
  float m[GB], l[GB];
#pragma unroll
  for (int g = 0; g < GB; g++) {
    m[g] = MASKED, l[g] = 0.f;
#pragma unroll
    for (int e = 0; e < E; e++) {
      query[g][e] = load_four(q + entry.y * q_stride + (i64)(first_head + min(g, heads - 1)) * D + e * L * 4 + at);
      o[g][e] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
  }
  for (int base = span.begin + warp * TOKENS * U; base < span.end; base += NW * TOKENS * U) {
    Raw raw_k[U][E], raw_v[U][E];
    float k_scale[U], v_scale[U];
    bool seen[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
      int token = base + u * TOKENS + sub;
      seen[u] = token < span.end && token >= span.visible;
      i64 row = pool_row<BS>(table, seen[u] ? token : span.end - 1, num_kv_heads, kv_head);
#pragma unroll
      for (int e = 0; e < E; e++) {
        raw_k[u][e] = load_stream((const Raw*)(keys + row * D + e * L * 4 + at));
        raw_v[u][e] = load_stream((const Raw*)(values + row * D + e * L * 4 + at));
      }
      if constexpr (SCALED) k_scale[u] = key_scales[row], v_scale[u] = value_scales[row];
    }
    float s[U][GB];
#pragma unroll
    for (int u = 0; u < U; u++) {
      float dot[GB];
#pragma unroll
      for (int g = 0; g < GB; g++) dot[g] = 0.f;
#pragma unroll
      for (int e = 0; e < E; e++) {
        float4 k = four_of(raw_k[u][e], KT());
#pragma unroll
        for (int g = 0; g < GB; g++)
          dot[g] = dot_add(dot[g], query[g][e], k);
      }
#pragma unroll
      for (int g = 0; g < GB; g++) {
#pragma unroll
        for (int x = L / 2; x; x >>= 1) dot[g] += __shfl_xor_sync(0xffffffffu, dot[g], x);
        if constexpr (SCALED) dot[g] *= k_scale[u];
        s[u][g] = seen[u] ? exponent_of<FLAGS, T>(dot[g], in_scale, out_scale) : MASKED;
      }
    }
#pragma unroll
    for (int g = 0; g < GB; g++) {  // one rescaling for U tokens
      float best = m[g];
#pragma unroll
      for (int u = 0; u < U; u++) best = fmaxf(best, s[u][g]);
      float shrink = exp2_fast(m[g] - best);
      m[g] = best, l[g] *= shrink;
#pragma unroll
      for (int e = 0; e < E; e++) o[g][e].x *= shrink, o[g][e].y *= shrink, o[g][e].z *= shrink, o[g][e].w *= shrink;
#pragma unroll
      for (int u = 0; u < U; u++) {
        s[u][g] = seen[u] ? exp2_fast(s[u][g] - best) : 0.f;
        l[g] += s[u][g];
        if constexpr (SCALED) s[u][g] *= seen[u] ? v_scale[u] : 0.f;
      }
    }
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int e = 0; e < E; e++) {
        float4 v = four_of(raw_v[u][e], KT());
        if (!seen[u]) v = make_float4(0.f, 0.f, 0.f, 0.f);  // whatever lies there may be infinite
#pragma unroll
        for (int g = 0; g < GB; g++)
          o[g][e].x += s[u][g] * v.x, o[g][e].y += s[u][g] * v.y, o[g][e].z += s[u][g] * v.z, o[g][e].w += s[u][g] * v.w;
      }
  }
#pragma unroll
  for (int g = 0; g < GB; g++) {  // the groups of lanes of a warp
#pragma unroll
    for (int x = L; x < 32; x <<= 1) {
      float m2 = __shfl_xor_sync(0xffffffffu, m[g], x), l2 = __shfl_xor_sync(0xffffffffu, l[g], x);
      float best = fmaxf(m[g], m2), a = exp2_fast(m[g] - best), b = exp2_fast(m2 - best);
      m[g] = best, l[g] = l[g] * a + l2 * b;
#pragma unroll
      for (int e = 0; e < E; e++) {
        o[g][e].x = o[g][e].x * a + __shfl_xor_sync(0xffffffffu, o[g][e].x, x) * b;
        o[g][e].y = o[g][e].y * a + __shfl_xor_sync(0xffffffffu, o[g][e].y, x) * b;
        o[g][e].z = o[g][e].z * a + __shfl_xor_sync(0xffffffffu, o[g][e].z, x) * b;
        o[g][e].w = o[g][e].w * a + __shfl_xor_sync(0xffffffffu, o[g][e].w, x) * b;
      }
    }
    if (sub == 0) {
#pragma unroll
      for (int e = 0; e < E; e++) *(float4*)(merge_o + (warp * GB + g) * D + e * L * 4 + at) = o[g][e];
      if (lane == 0) merge_ml[warp * GB + g] = make_float2(m[g], l[g]);
    }
  }
  __syncthreads();  // every warp's part is there
  for (int i = threadIdx.x; i < heads * D; i += NW * 32) {
    int g = i / D, d = i % D;
    float best = MASKED, sum = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < NW; w++) best = fmaxf(best, merge_ml[w * GB + g].x);
#pragma unroll
    for (int w = 0; w < NW; w++) {
      float weight = exp2_fast(merge_ml[w * GB + g].x - best);
      sum += weight * merge_ml[w * GB + g].y;
      value += weight * merge_o[(w * GB + g) * D + d];
    }
    store_result<T, D>(out, part_out, part_ml, (i64)entry.y * num_heads + first_head + g,
                       (i64)blockIdx.y * num_heads + first_head + g, first_slot + blockIdx.z, num_slots, d, value, best, sum);
  }
}
