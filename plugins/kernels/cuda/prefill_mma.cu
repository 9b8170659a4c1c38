// Several query tokens per row over the paged pool, on tensor cores: fp16 and bf16, pools of the same type or int8.
//
// grid (tiles, num_kv_heads), 4 warps of 16 * MT rows: with two m-tiles a warp reads half of K and V for each product.
// Row r of a tile's sequence is query token r / group, head kv_head * group + r % group, so that one tile of K and V serves
// the whole group.  What this step's tokens add to the pool is already there.  Two stages of BN tokens; int8 tiles are widened
// in shared memory, once for all rows.
//
// A shared prefix is the same work with other rows and without the causal limit: row r is head r % group of member r / group,
// the members being rows of a decode batch, and the result is a part for the reduction.
#include "tiles.cuh"

struct PrefixTile { int table_row, first_member, num_members, row, begin, end, slot, unused; };

template <class T, class KT, int D, int BS, int BN, int MT, int FLAGS, bool PREFIX>
DEVICE void prefill_body(unsigned char* memory, T* out, float* part_out, float2* part_ml, const T* q, const KT* keys,
                         const KT* values, const float* key_scales, const float* value_scales, const int* table, int begin,
                         int end, int past, int rows, int row0, int q0, const int2* members, int num_kv_heads, int group,
                         i64 q_stride, float in_scale, float out_scale, int window, int slot, int num_slots) {
  constexpr bool SCALED = Same<KT, i8>::value;
  constexpr int BM = 64 * MT, KS = D / 16, NT = BN / 8, DT = D / 8, THREADS = 128;
  constexpr bool KEEP_Q = D * MT <= 128;  // in registers; else it is read again for every tile
  typedef Rows<D * 2> R;
  constexpr int CH = D * sizeof(KT) / 16, RAW_STRIDE = SCALED ? D : R::STRIDE, RAW = BN * RAW_STRIDE, SCALES = SCALED ? BN * 4 : 0;
  Carve carve(memory);
  unsigned char* q_tile = carve.take<unsigned char>(BM * R::STRIDE, 128);
  unsigned char* raw_k = carve.take<unsigned char>(2 * RAW, 128);
  unsigned char* raw_v = carve.take<unsigned char>(2 * RAW, 128);
  unsigned char* raw_s = SCALED ? carve.take<unsigned char>(4 * SCALES, 128) : raw_k;
  unsigned char* wide_k = SCALED ? carve.take<unsigned char>(2 * BN * R::STRIDE, 128) : raw_k;
  float* scales = SCALED ? carve.take<float>(2 * BN) : (float*)raw_k;
  const int kv_head = blockIdx.y, num_heads = num_kv_heads * group;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g4 = lane >> 2, c4 = lane & 3;

  auto token_of = [&](int r) { return PREFIX ? members[r / group].y : q0 + r / group; };
  for (int i = tid; i < BM * (D / 8); i += THREADS) {
    int r = i / (D / 8), c = i % (D / 8), row = row0 + r;
    bool ok = row < rows;
    row = ok ? row : 0;
    copy_async_16(q_tile + R::at(r, c), q + token_of(row) * q_stride + (i64)(kv_head * group + row % group) * D + c * 8, ok);
  }
  // Where a thread always copies the same column of rows r0, r0 + STEP, ..., the block of a row is known at compile time.
  constexpr int STEP = THREADS / CH;
  constexpr bool REGULAR = THREADS % CH == 0 && (BS % STEP == 0 || STEP % BS == 0) && BN % BS == 0;
  const int r0 = tid / CH, c0 = tid % CH;
  const i64 block_bytes = (i64)num_kv_heads * BS * D * sizeof(KT), in_block = ((i64)kv_head * BS + r0 % BS) * D * sizeof(KT) + c0 * 16;
  auto load = [&](int stage, int first) {
    if constexpr (REGULAR) {
      const int* blocks = table + first / BS + r0 / BS;
#pragma unroll
      for (int i = 0; i < BN / STEP; i++) {
        bool ok = first + r0 + i * STEP < end;
        i64 at = (ok ? blocks[i * STEP / BS] : 0) * block_bytes + in_block + i * STEP % BS * D * (int)sizeof(KT);
        int r = r0 + i * STEP, to = stage * RAW + (SCALED ? r * D + c0 * 16 : R::at(r, c0));
        copy_async_16(raw_k + to, (const unsigned char*)keys + at, ok);
        copy_async_16(raw_v + to, (const unsigned char*)values + at, ok);
      }
    } else {
#pragma unroll
      for (int i = tid; i < BN * CH; i += THREADS) {
        int r = i / CH, c = i % CH, token = first + r;
        bool ok = token < end;
        i64 at = pool_row<BS>(table, ok ? token : end - 1, num_kv_heads, kv_head) * D * (int)sizeof(KT) + c * 16;
        int to = stage * RAW + (SCALED ? r * D + c * 16 : R::at(r, c));
        copy_async_16(raw_k + to, (const unsigned char*)keys + at, ok);
        copy_async_16(raw_v + to, (const unsigned char*)values + at, ok);
      }
    }
    if constexpr (SCALED)
      if (tid < 2 * BN / 4) {
        int part = tid / (BN / 4), token = first + tid % (BN / 4) * 4;
        bool ok = token < end;
        const float* from = (part ? value_scales : key_scales) + pool_row<BS>(table, ok ? token : end - 1, num_kv_heads, kv_head) / 4 * 4;
        copy_async_16(raw_s + stage * 2 * SCALES + tid * 16, from, ok);
      }
    copy_async_commit();
  };
  // Every thread widens what it has copied itself, so that no barrier is needed between the two.
  auto widen_unit = [&](int from, int to) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
      uint4 x = *(const uint4*)((part ? raw_v : raw_k) + from);
      unsigned char* wide = wide_k + part * BN * R::STRIDE;
      *(uint4*)(wide + to) = make_uint4(widen2<0, 1>(x.x, T()), widen2<2, 3>(x.x, T()), widen2<0, 1>(x.y, T()), widen2<2, 3>(x.y, T()));
      *(uint4*)(wide + R::along(to, 1)) = make_uint4(widen2<0, 1>(x.z, T()), widen2<2, 3>(x.z, T()), widen2<0, 1>(x.w, T()), widen2<2, 3>(x.w, T()));
    }
  };
  auto widen = [&](int stage, int first) {
    if constexpr (REGULAR && STEP % 8 == 0) {
      const int from = stage * RAW + r0 * D + c0 * 16, to = R::at(r0, 2 * c0);
#pragma unroll
      for (int i = 0; i < BN / STEP; i++) widen_unit(from + i * STEP * D, to + i * STEP * R::STRIDE);
    } else {
#pragma unroll
      for (int i = tid; i < BN * CH; i += THREADS) widen_unit(stage * RAW + i * 16, R::at(i / CH, i % CH * 2));
    }
    if (tid < 2 * BN / 4) {  // what lies behind the end may be no number
      float4 x = *(const float4*)(raw_s + stage * 2 * SCALES + tid * 16);
      const int left = end - first - tid % (BN / 4) * 4;
      *(float4*)(scales + tid * 4) = make_float4(left > 0 ? x.x : 0.f, left > 1 ? x.y : 0.f, left > 2 ? x.z : 0.f, left > 3 ? x.w : 0.f);
    }
  };
  if (begin < end) load(0, begin);
  else copy_async_commit();

  u32 query[KEEP_Q ? KS : 1][MT][4];
  float o[MT][DT][4], m[MT][2], l[MT][2];
  int last[MT][2];  // visible token of this lane's rows
  const int row_a = row0 + warp * 16 * MT + g4;
#pragma unroll
  for (int t = 0; t < MT; t++) {
#pragma unroll
    for (int i = 0; i < DT; i++) o[t][i][0] = o[t][i][1] = o[t][i][2] = o[t][i][3] = 0.f;
#pragma unroll
    for (int h = 0; h < 2; h++)
      m[t][h] = MASKED, l[t][h] = 0.f, last[t][h] = PREFIX ? end - 1 : past + (row_a + t * 16 + h * 8) / group;
  }
  int q_place = R::at(warp * MT * 16 + (lane & 15), lane >> 4), v_place = R::at(lane & 15, lane >> 4);
  int k_place = R::at((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
  auto load_query = [&](u32 (&a)[MT][4], int k) {
#pragma unroll
    for (int t = 0; t < MT; t++) ldmatrix_x4(a[t], q_tile + t * 16 * R::STRIDE + R::along(q_place, k * 2));
  };
  // The last visible token of the tile's first and last row.
  const int tile_first = PREFIX ? end - 1 : past + row0 / group;
  const int tile_last = PREFIX ? end - 1 : past + (min(rows, row0 + BM) - 1) / group;

  for (int first = begin, stage = 0; first < end; first += BN, stage ^= 1) {
    // Which of these have to be computed anew so that nothing spills was found by trying.
    if constexpr (SCALED || FLAGS == SOFTCAP) q_place = opaque(q_place);
    if constexpr (SCALED) k_place = opaque(k_place), v_place = opaque(v_place);
    copy_async_wait<0>();
    __syncthreads();  // this stage has landed for every thread, and every thread is done with the other
    if (first + BN < end) load(stage ^ 1, first + BN);
    const unsigned char* k_tile = SCALED ? wide_k : raw_k + stage * RAW;
    const unsigned char* v_tile = SCALED ? wide_k + BN * R::STRIDE : raw_v + stage * RAW;
    if constexpr (SCALED) {
      widen(stage, first);
      __syncthreads();  // the tile is wide
    }
    if (KEEP_Q && first == begin) {
#pragma unroll
      for (int k = 0; k < KS; k++) load_query(query[KEEP_Q ? k : 0], k);
    }
    float s[MT][NT][4];
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
      for (int n = 0; n < NT; n++) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0.f;
#pragma unroll
    for (int k = 0; k < KS; k++) {
      if (!KEEP_Q) load_query(query[0], k);
      const u32 (&a)[MT][4] = query[KEEP_Q ? k : 0];
#pragma unroll
      for (int n = 0; n < NT; n += 2) {  // tokens n * 8 .. n * 8 + 15, head dims k * 16 .. k * 16 + 15
        u32 b[4];
        ldmatrix_x4(b, k_tile + n * 8 * R::STRIDE + R::along(k_place, k * 2));
#pragma unroll
        for (int t = 0; t < MT; t++) {
          mma_16x8x16(s[t][n], a[t], b[0], b[1], T());
          mma_16x8x16(s[t][n + 1], a[t], b[2], b[3], T());
        }
      }
    }
    const float scale = FLAGS & SOFTCAP ? 1.f : in_scale;
#pragma unroll
    for (int t = 0; t < MT; t++) {
      if constexpr (SCALED) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
          float2 x = *(const float2*)(scales + n * 8 + c4 * 2);
          s[t][n][0] *= x.x, s[t][n][1] *= x.y, s[t][n][2] *= x.x, s[t][n][3] *= x.y;
        }
      }
      if constexpr ((FLAGS & SOFTCAP) != 0) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int e = 0; e < 4; e++) s[t][n][e] = exponent_of<FLAGS, T>(s[t][n][e], in_scale, out_scale);
      }
      const int seen[2] = {last[t][0] - first - c4 * 2, last[t][1] - first - c4 * 2};  // by a column of this lane, at most
      if (first + BN - 1 > tile_first) {  // only tiles on the diagonal need the mask
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int e = 0; e < 4; e++)
            if (n * 8 + (e & 1) > seen[e >> 1]) s[t][n][e] = MASKED;
      }
      if constexpr ((FLAGS & WINDOW) != 0) {
        if (first <= tile_last - window) {
#pragma unroll
          for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
              if (n * 8 + (e & 1) <= seen[e >> 1] - window) s[t][n][e] = MASKED;
        }
      }
      float best[2] = {m[t][0], m[t][1]}, shift[2];
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) best[e >> 1] = fmaxf(best[e >> 1], s[t][n][e]);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], 1));
        best[h] = fmaxf(best[h], __shfl_xor_sync(0xffffffffu, best[h], 2));
      }
      if (__any_sync(0xffffffffu, fmaxf(best[0] - m[t][0], best[1] - m[t][1]) * scale > GROWTH)) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          // A row that has seen nothing yet counts masked tokens as ones; its first real score shrinks them to nothing.
          float shrink = exp2_fast((m[t][h] - best[h]) * scale);
          m[t][h] = best[h], l[t][h] *= shrink;
#pragma unroll
          for (int i = 0; i < DT; i++) o[t][i][2 * h] *= shrink, o[t][i][2 * h + 1] *= shrink;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++) shift[h] = m[t][h] * scale;
#pragma unroll
      for (int n = 0; n < NT; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          s[t][n][e] = exp2_fast(s[t][n][e] * scale - shift[e >> 1]);
          l[t][e >> 1] += s[t][n][e];
        }
      if constexpr (SCALED) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
          float2 x = *(const float2*)(scales + BN + n * 8 + c4 * 2);
          s[t][n][0] *= x.x, s[t][n][1] *= x.y, s[t][n][2] *= x.x, s[t][n][3] *= x.y;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < BN / 16; k++) {
      u32 a[MT][4];
#pragma unroll
      for (int t = 0; t < MT; t++) {
        a[t][0] = pack2(s[t][2 * k][0], s[t][2 * k][1], T()), a[t][1] = pack2(s[t][2 * k][2], s[t][2 * k][3], T());
        a[t][2] = pack2(s[t][2 * k + 1][0], s[t][2 * k + 1][1], T()), a[t][3] = pack2(s[t][2 * k + 1][2], s[t][2 * k + 1][3], T());
      }
#pragma unroll
      for (int d = 0; d < DT; d += 2) {
        u32 b[4];
        ldmatrix_x4_trans(b, v_tile + k * 16 * R::STRIDE + R::along(v_place, d));
#pragma unroll
        for (int t = 0; t < MT; t++) {
          mma_16x8x16(o[t][d], a[t], b[0], b[1], T());
          mma_16x8x16(o[t][d + 1], a[t], b[2], b[3], T());
        }
      }
    }
  }
  copy_async_wait<0>();
#pragma unroll
  for (int t = 0; t < MT; t++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      l[t][h] += __shfl_xor_sync(0xffffffffu, l[t][h], 1);
      l[t][h] += __shfl_xor_sync(0xffffffffu, l[t][h], 2);
      const int row = row_a + t * 16 + h * 8;
      const float inverse = l[t][h] > 0.f && last[t][h] >= 0 ? 1.f / l[t][h] : 0.f;  // a row of padding sees nothing
      if (row >= rows) continue;
      const int head = kv_head * group + row % group;
      if constexpr (PREFIX) {
        const i64 part = ((i64)members[row / group].x * num_heads + head) * num_slots + slot;
#pragma unroll
        for (int d = 0; d < DT; d++)
          store_pair(part_out + part * D + d * 8 + c4 * 2, o[t][d][2 * h] * inverse, o[t][d][2 * h + 1] * inverse);
        if (c4 == 0) part_ml[part] = make_float2(FLAGS & SOFTCAP ? m[t][h] : m[t][h] * in_scale, l[t][h]);
      } else {
        T* to = out + ((i64)(q0 + row / group) * num_heads + head) * D + c4 * 2;
#pragma unroll
        for (int d = 0; d < DT; d++) store_pair(to + d * 8, o[t][d][2 * h] * inverse, o[t][d][2 * h + 1] * inverse);
      }
    }
}

template <class T, class KT, int D, int BS, int BN, int MT, int FLAGS>
KERNEL __launch_bounds__(128, 1) prefill_mma(
    T* __restrict__ out, const T* __restrict__ q, const KT* __restrict__ keys, const KT* __restrict__ values,
    const float* __restrict__ key_scales, const float* __restrict__ value_scales, const int* __restrict__ tables,
    const int* __restrict__ lengths, const int* __restrict__ starts, const int2* __restrict__ tiles, int table_width, int num_kv_heads,
    int group, i64 q_stride, float in_scale, float out_scale, int window) {
  DYNAMIC_SHARED(memory);
  const int seq = tiles[blockIdx.x].x, row0 = tiles[blockIdx.x].y;
  const int q0 = starts[seq], count = starts[seq + 1] - q0, past = lengths[seq] - count, rows = count * group;
  const int end = past + (min(rows, row0 + 64 * MT) - 1) / group + 1;  // the causal limit of the tile
  int begin = 0;
  if constexpr ((FLAGS & WINDOW) != 0) begin = max(0, past + row0 / group - window + 1) / BS * BS;
  prefill_body<T, KT, D, BS, BN, MT, FLAGS, false>(memory, out, nullptr, nullptr, q, keys, values, key_scales, value_scales,
                                               tables + (i64)seq * table_width, begin, end, past, rows, row0, q0, nullptr,
                                               num_kv_heads, group, q_stride, in_scale, out_scale, window, 0, 1);
}

template <class T, class KT, int D, int BS, int BN, int MT, int FLAGS>
KERNEL __launch_bounds__(128, 1) prefix_mma(
    float* __restrict__ part_out, float2* __restrict__ part_ml, const T* __restrict__ q, const KT* __restrict__ keys,
    const KT* __restrict__ values, const float* __restrict__ key_scales, const float* __restrict__ value_scales,
    const int* __restrict__ tables, const PrefixTile* __restrict__ tiles, const int2* __restrict__ members, int table_width,
    int num_kv_heads, int group, i64 q_stride, float in_scale, float out_scale, int num_slots) {
  DYNAMIC_SHARED(memory);
  const PrefixTile tile = tiles[blockIdx.x];
  prefill_body<T, KT, D, BS, BN, MT, FLAGS & SOFTCAP, true>(
      memory, nullptr, part_out, part_ml, q, keys, values, key_scales, value_scales, tables + (i64)tile.table_row * table_width,
      tile.begin, tile.end, 0, tile.num_members * group, tile.row, 0, members + tile.first_member, num_kv_heads, group, q_stride,
      in_scale, out_scale, 0, tile.slot, num_slots);
}
