// Several query tokens per row over the paged pool, on CUDA cores: any type of activations, any type of pool, any block size.
//
// grid (tiles, num_kv_heads), 128 threads.  BM rows by BN tokens; row r of a tile's sequence is query token r / group, head
// kv_head * group + r % group.  Q, K and V lie in shared memory as float.  Thread (y, x) of 16 x 8 computes rows 2y, 2y + 1:
// scores of tokens x, x + 8, ..., and output dims 4x, 4x + 32, ....  A row belongs to one warp.
#include "attention.cuh"

template <class T, class KT, int D, int BS, int FLAGS>
KERNEL __launch_bounds__(128, 1) prefill(
    T* __restrict__ out, const T* __restrict__ q, const KT* __restrict__ keys, const KT* __restrict__ values,
    const float* __restrict__ key_scales, const float* __restrict__ value_scales, const int* __restrict__ tables,
    const int* __restrict__ lengths, const int* __restrict__ starts, const int2* __restrict__ tiles, int table_width, int num_kv_heads,
    int group, i64 q_stride, float in_scale, float out_scale, int window) {
  constexpr int BM = 32, BN = D > 128 ? 8 : 32, J = BN / 8, THREADS = 128, STRIDE = D + 4, FOURS = D / 4, E = (FOURS + 7) / 8, P = BN + 4;
  constexpr bool SCALED = Same<KT, i8>::value;
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  float* q_tile = carve.take<float>(BM * STRIDE);
  float* k_tile = carve.take<float>(BN * STRIDE);
  float* v_tile = carve.take<float>(BN * STRIDE);
  float* weights = carve.take<float>(BM * P);
  const int seq = tiles[blockIdx.x].x, row0 = tiles[blockIdx.x].y, kv_head = blockIdx.y, tid = threadIdx.x;
  const int q0 = starts[seq], count = starts[seq + 1] - q0, past = lengths[seq] - count, rows = count * group;
  const int num_heads = num_kv_heads * group, y = tid >> 3, x = tid & 7;
  const int* table = tables + (i64)seq * table_width;
  const int end = past + (min(rows, row0 + BM) - 1) / group + 1;
  int begin = 0;
  if constexpr ((FLAGS & WINDOW) != 0) begin = max(0, past + row0 / group - window + 1);

  for (int i = tid; i < BM * FOURS; i += THREADS) {
    int r = i / FOURS, c = i % FOURS * 4, row = row0 + r;
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
    if (row < rows) v = load_four(q + (q0 + row / group) * q_stride + (i64)(kv_head * group + row % group) * D + c);
    *(float4*)(q_tile + r * STRIDE + c) = v;
  }
  float4 o[2][E];
  float m[2] = {MASKED, MASKED}, l[2] = {0.f, 0.f};
#pragma unroll
  for (int e = 0; e < E; e++) o[0][e] = o[1][e] = make_float4(0.f, 0.f, 0.f, 0.f);
  const int last[2] = {past + (row0 + 2 * y) / group, past + (row0 + 2 * y + 1) / group};

  for (int first = begin; first < end; first += BN) {
    __syncthreads();  // every thread is done with the tile before
    for (int i = tid; i < BN * FOURS; i += THREADS) {
      int r = i / FOURS, c = i % FOURS * 4, token = first + r;
      float4 k = make_float4(0.f, 0.f, 0.f, 0.f), v = k;
      if (token < end) {
        i64 row = pool_row<BS>(table, token, num_kv_heads, kv_head);
        k = load_four(keys + row * D + c), v = load_four(values + row * D + c);
        if constexpr (SCALED) {
          float a = key_scales[row], b = value_scales[row];
          k = make_float4(k.x * a, k.y * a, k.z * a, k.w * a), v = make_float4(v.x * b, v.y * b, v.z * b, v.w * b);
        }
      }
      *(float4*)(k_tile + r * STRIDE + c) = k;
      *(float4*)(v_tile + r * STRIDE + c) = v;
    }
    __syncthreads();  // the tile is there
    float s[2][J];
#pragma unroll
    for (int j = 0; j < J; j++) s[0][j] = s[1][j] = 0.f;
#pragma unroll 4
    for (int c = 0; c < D; c += 4) {
      float4 a[2] = {*(const float4*)(q_tile + 2 * y * STRIDE + c), *(const float4*)(q_tile + (2 * y + 1) * STRIDE + c)};
#pragma unroll
      for (int j = 0; j < J; j++) {
        float4 k = *(const float4*)(k_tile + (x + 8 * j) * STRIDE + c);
#pragma unroll
        for (int h = 0; h < 2; h++) s[h][j] = dot_add(s[h][j], a[h], k);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float best = m[h];
      bool seen[J];
#pragma unroll
      for (int j = 0; j < J; j++) {
        int token = first + x + 8 * j;
        seen[j] = token <= last[h] && (!(FLAGS & WINDOW) || token > last[h] - window);
        s[h][j] = seen[j] ? exponent_of<FLAGS, T>(s[h][j], in_scale, out_scale) : MASKED;
        best = fmaxf(best, s[h][j]);
      }
#pragma unroll
      for (int i = 4; i; i >>= 1) best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, i));
      float shrink = exp2_fast(m[h] - best);
      m[h] = best, l[h] *= shrink;
#pragma unroll
      for (int e = 0; e < E; e++) o[h][e].x *= shrink, o[h][e].y *= shrink, o[h][e].z *= shrink, o[h][e].w *= shrink;
#pragma unroll
      for (int j = 0; j < J; j++) {
        float weight = seen[j] ? exp2_fast(s[h][j] - best) : 0.f;
        l[h] += weight;
        weights[(2 * y + h) * P + x + 8 * j] = weight;
      }
    }
    __syncwarp();  // the weights of the warp's rows are there
#pragma unroll 4
    for (int t = 0; t < BN; t++) {
      float w[2] = {weights[2 * y * P + t], weights[(2 * y + 1) * P + t]};
#pragma unroll
      for (int e = 0; e < E; e++)
        if (E * 8 == FOURS || x + 8 * e < FOURS) {
          float4 v = *(const float4*)(v_tile + t * STRIDE + (x + 8 * e) * 4);
#pragma unroll
          for (int h = 0; h < 2; h++) o[h][e].x += w[h] * v.x, o[h][e].y += w[h] * v.y, o[h][e].z += w[h] * v.z, o[h][e].w += w[h] * v.w;
        }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 4; i; i >>= 1) l[h] += __shfl_xor_sync(0xffffffffu, l[h], i);
    const int row = row0 + 2 * y + h;
    const float inverse = l[h] > 0.f ? 1.f / l[h] : 0.f;  // a row of padding sees nothing
    if (row < rows) {
      T* to = out + ((i64)(q0 + row / group) * num_heads + kv_head * group + row % group) * D;
#pragma unroll
      for (int e = 0; e < E; e++)
        if (x + 8 * e < FOURS)
          store_four(to + (x + 8 * e) * 4, make_float4(o[h][e].x * inverse, o[h][e].y * inverse, o[h][e].z * inverse, o[h][e].w * inverse));
    }
  }
}
