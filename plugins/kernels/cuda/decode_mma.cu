// One query token per row, on tensor cores: fp16 and bf16, pools of the same type or int8, blocks of a multiple of 16.
//
// S^T = K Q^T and O^T = V^T P^T: tokens and head dims fill the 16-row side of the product, up to 8 * NH query heads of the
// group its columns.  grid (num_kv_heads * head blocks, rows, splits).  Each warp owns the tiles of 16 tokens warp,
// warp + NW, ... of the split and a private pipeline of ST stages, so the main loop has no barrier of the block.
//
// int8: codes are widened on their way from shared memory to the product, exactly; the scales of the tokens multiply the
// scores and the weights.  Widening reads 16-bit units, so a fragment holds its head dims in another order; q is loaded,
// and o stored, in that order.
#include "tiles.cuh"

template <class T, class KT, int D, int BS, int NH, int NW, int ST, int FLAGS>
KERNEL __launch_bounds__(NW * 32, 1) decode_mma(
    T* __restrict__ out, float* __restrict__ part_out, float2* __restrict__ part_ml, const T* __restrict__ q,
    const KT* __restrict__ keys, const KT* __restrict__ values, const float* __restrict__ key_scales,
    const float* __restrict__ value_scales, const int* __restrict__ tables, const int* __restrict__ lengths,
    const int2* __restrict__ entries, const int* __restrict__ firsts, int table_width, int num_kv_heads, int group, i64 q_stride,
    float in_scale, float out_scale, int window, int min_split, int first_slot, int num_slots) {
  static_assert(BS % 16 == 0 && D % 16 == 0, "a tile of 16 tokens lies in one block");
  constexpr bool SCALED = Same<KT, i8>::value;
  typedef Rows<D * sizeof(KT)> R;
  constexpr int CH = R::CHUNKS, KS = D / 16, TILE = 16 * R::STRIDE, STAGE = 2 * TILE + (SCALED ? 128 : 0);
  static_assert(NW * ST * STAGE >= NW * NH * 8 * D * 4, "the stages become the merge buffer");
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  unsigned char* stages = carve.take<unsigned char>(NW * ST * STAGE, 128);
  float2* merge_ml = carve.take<float2>(NW * NH * 8);
  float* merge_o = (float*)stages;
  const int head_blocks = (group + NH * 8 - 1) / (NH * 8);
  const int kv_head = blockIdx.x / head_blocks, head0 = blockIdx.x % head_blocks * NH * 8, heads = min(NH * 8, group - head0);
  const int2 entry = entries ? entries[blockIdx.y] : make_int2(blockIdx.y, blockIdx.y);
  const int length = lengths[entry.x];
  const Span span = split_span<FLAGS>(length, firsts ? firsts[blockIdx.y] : 0, window, blockIdx.z, gridDim.z, min_split);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g4 = lane >> 2, c4 = lane & 3;
  const int num_heads = num_kv_heads * group, first_head = kv_head * group + head0;
  const int* table = tables + (i64)entry.x * table_width;
  unsigned char* mine = stages + warp * ST * STAGE;

  auto issue = [&](int token, int stage) {  // the tile from this token on into this stage; always one group of copies
    if (token < span.end) {
      unsigned char* k = mine + stage;
      i64 row = pool_row<BS>(table, token, num_kv_heads, kv_head);
      const unsigned char* from_k = (const unsigned char*)(keys + row * D);
      const unsigned char* from_v = (const unsigned char*)(values + row * D);
#pragma unroll
      for (int i = lane; i < 16 * CH; i += 32) {
        int r = i / CH, c = i % CH;
        bool ok = token + r < span.end;
        copy_async_16(k + R::at(r, c), from_k + i * 16, ok);
        copy_async_16(k + TILE + R::at(r, c), from_v + i * 16, ok);
      }
      if constexpr (SCALED)
        if (lane < 8) copy_async_16(k + 2 * TILE + lane * 16, (lane < 4 ? key_scales : value_scales) + row + lane % 4 * 4, true);
    }
    copy_async_commit();
  };
#pragma unroll
  for (int j = 0; j < ST - 1; j++) issue(span.begin + (warp + j * NW) * 16, j * STAGE);

  u32 query[NH][KS][2];
#pragma unroll
  for (int n = 0; n < NH; n++)
#pragma unroll
    for (int k = 0; k < KS; k++) {
      int g = n * 8 + g4;
      const T* p = q + entry.y * q_stride + (i64)(first_head + min(g, heads - 1)) * D + k * 16 + (SCALED ? c4 * 4 : c4 * 2);
      query[n][k][0] = g < heads ? *(const u32*)p : 0u;
      query[n][k][1] = g < heads ? *(const u32*)(p + (SCALED ? 2 : 8)) : 0u;
    }
  float o[NH][KS][4], m[NH][2], l[NH][2];
#pragma unroll
  for (int n = 0; n < NH; n++) {
    m[n][0] = m[n][1] = MASKED, l[n][0] = l[n][1] = 0.f;
#pragma unroll
    for (int i = 0; i < KS; i++) o[n][i][0] = o[n][i][1] = o[n][i][2] = o[n][i][3] = 0.f;
  }

  const int place = R::at(lane & 15, lane >> 4), v_place = R::at((lane & 7) + (lane >> 4) * 8, (lane >> 3) & 1);
  for (int first = span.begin + warp * 16, stage = 0, free = (ST - 1) * STAGE; first < span.end; first += NW * 16) {
    copy_async_wait<ST - 2>();
    __syncwarp();  // this tile has landed for every lane, and every lane is done with the one before
    issue(first + (ST - 1) * NW * 16, free);
    const unsigned char* k_tile = mine + stage;
    free = stage, stage = stage == (ST - 1) * STAGE ? 0 : stage + STAGE;
    const unsigned char* v_tile = k_tile + TILE;
    float s[NH][4];
#pragma unroll
    for (int n = 0; n < NH; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
    if constexpr (SCALED) {
#pragma unroll
      for (int k = 0; k < KS; k += 2) {  // 32 head dims
        u32 raw[4];
        ldmatrix_x4(raw, k_tile + (k + 1 < KS ? R::along(place, k) : R::at(lane & 15, k)));
#pragma unroll
        for (int half = 0; half < 2 && k + half < KS; half++) {
          u32 a[4] = {widen2<0, 1>(raw[2 * half], T()), widen2<0, 1>(raw[2 * half + 1], T()), widen2<2, 3>(raw[2 * half], T()),
                      widen2<2, 3>(raw[2 * half + 1], T())};
#pragma unroll
          for (int n = 0; n < NH; n++) mma_16x8x16(s[n], a, query[n][k + half][0], query[n][k + half][1], T());
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < KS; k++) {
        u32 a[4];
        ldmatrix_x4(a, k_tile + R::along(place, k * 2));
#pragma unroll
        for (int n = 0; n < NH; n++) mma_16x8x16(s[n], a, query[n][k][0], query[n][k][1], T());
      }
    }
    const int token = first + g4;
    const bool seen[2] = {token < span.end && token >= span.visible, token + 8 < span.end && token + 8 >= span.visible};
    float v_scale[2] = {1.f, 1.f};
    if constexpr (SCALED) {
      const float* scales = (const float*)(v_tile + TILE);
#pragma unroll
      for (int n = 0; n < NH; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] *= scales[g4 + i / 2 * 8];
      v_scale[0] = seen[0] ? scales[16 + g4] : 0.f, v_scale[1] = seen[1] ? scales[24 + g4] : 0.f;
    }
    u32 weights[NH][2];
#pragma unroll
    for (int n = 0; n < NH; n++) {
      float best[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float x = s[n][h] = seen[0] ? exponent_of<FLAGS, T>(s[n][h], in_scale, out_scale) : MASKED;
        float y = s[n][2 + h] = seen[1] ? exponent_of<FLAGS, T>(s[n][2 + h], in_scale, out_scale) : MASKED;
        best[h] = fmaxf(m[n][h], fmaxf(x, y));
        best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], 4));
        best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], 8));
        best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], 16));
      }
      if (__any_sync(0xffffffffu, fmaxf(best[0] - m[n][0], best[1] - m[n][1]) > GROWTH)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float shrink = exp2_fast(m[n][h] - best[h]);
          m[n][h] = best[h], l[n][h] *= shrink;
#pragma unroll
          for (int d = 0; d < KS; d++) o[n][d][h] *= shrink, o[n][d][2 + h] *= shrink;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float x = seen[0] ? exp2_fast(s[n][h] - m[n][h]) : 0.f, y = seen[1] ? exp2_fast(s[n][2 + h] - m[n][h]) : 0.f;
        l[n][h] += x + y;
        s[n][h] = x * v_scale[0], s[n][2 + h] = y * v_scale[1];
      }
      weights[n][0] = movmatrix_trans(pack2(s[n][0], s[n][1], T()));
      weights[n][1] = movmatrix_trans(pack2(s[n][2], s[n][3], T()));
    }
    if constexpr (SCALED) {
#pragma unroll
      for (int d = 0; d < KS; d += 2) {
        u32 raw[4];
        ldmatrix_x4_trans(raw, v_tile + (d + 1 < KS ? R::along(place, d) : R::at(lane & 15, d)));
#pragma unroll
        for (int half = 0; half < 2 && d + half < KS; half++) {
          u32 a[4] = {widen2<0, 2>(raw[2 * half], T()), widen2<1, 3>(raw[2 * half], T()), widen2<0, 2>(raw[2 * half + 1], T()),
                      widen2<1, 3>(raw[2 * half + 1], T())};
#pragma unroll
          for (int n = 0; n < NH; n++) mma_16x8x16(o[n][d + half], a, weights[n][0], weights[n][1], T());
        }
      }
    } else {
#pragma unroll
      for (int d = 0; d < KS; d++) {
        u32 a[4];
        ldmatrix_x4_trans(a, v_tile + R::along(v_place, d * 2));
#pragma unroll
        for (int n = 0; n < NH; n++) mma_16x8x16(o[n][d], a, weights[n][0], weights[n][1], T());
      }
    }
  }
  copy_async_wait<0>();
  __syncthreads();  // the stages become the merge buffer
#pragma unroll
  for (int n = 0; n < NH; n++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      l[n][h] += __shfl_xor_sync(0xffffffffu, l[n][h], 4);
      l[n][h] += __shfl_xor_sync(0xffffffffu, l[n][h], 8);
      l[n][h] += __shfl_xor_sync(0xffffffffu, l[n][h], 16);
      const int g = (warp * NH + n) * 8 + c4 * 2 + h;
#pragma unroll
      for (int d = 0; d < KS; d++) {
        merge_o[g * D + d * 16 + (SCALED ? g4 * 2 : g4)] = o[n][d][h];
        merge_o[g * D + d * 16 + (SCALED ? g4 * 2 + 1 : g4 + 8)] = o[n][d][2 + h];
      }
      if (g4 == 0) merge_ml[g] = make_float2(m[n][h], l[n][h]);
    }
  __syncthreads();  // every warp's part is there
  for (int i = threadIdx.x; i < heads * D; i += NW * 32) {
    int g = i / D, d = i % D;
    float best = MASKED, sum = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < NW; w++) best = fmaxf(best, merge_ml[w * NH * 8 + g].x);
#pragma unroll
    for (int w = 0; w < NW; w++) {
      float weight = exp2_fast(merge_ml[w * NH * 8 + g].x - best);
      sum += weight * merge_ml[w * NH * 8 + g].y;
      value += weight * merge_o[(w * NH * 8 + g) * D + d];
    }
    store_result<T, D>(out, part_out, part_ml, (i64)entry.y * num_heads + first_head + g,
                       (i64)blockIdx.y * num_heads + first_head + g, first_slot + blockIdx.z, num_slots, d, value, best, sum);
  }
}
