// One small kernel for each primitive of intrin.cuh, so that a wrong one is found before anything is built on it.
#include "intrin.cuh"

template <class T> KERNEL try_mma(float* d, const u32* a, const u32* b) {
  const int lane = threadIdx.x;
  const u32 left[4] = {a[lane * 4], a[lane * 4 + 1], a[lane * 4 + 2], a[lane * 4 + 3]};
  float sum[4] = {d[lane * 4], d[lane * 4 + 1], d[lane * 4 + 2], d[lane * 4 + 3]};
  mma_16x8x16(sum, left, b[lane * 2], b[lane * 2 + 1], T());
  for (int i = 0; i < 4; i++) d[lane * 4 + i] = sum[i];
}

KERNEL try_ldmatrix(u32* straight, u32* transposed, const uint4* source) {
  DYNAMIC_SHARED(memory);
  uint4* rows = (uint4*)memory;
  rows[threadIdx.x] = source[threadIdx.x];
  __syncthreads();
  u32 r[4];
  ldmatrix_x4(r, rows + threadIdx.x);
  for (int i = 0; i < 4; i++) straight[threadIdx.x * 4 + i] = r[i];
  ldmatrix_x4_trans(r, rows + threadIdx.x);
  for (int i = 0; i < 4; i++) transposed[threadIdx.x * 4 + i] = r[i];
}

KERNEL try_movmatrix(u32* out, const u32* in) { out[threadIdx.x] = movmatrix_trans(in[threadIdx.x]); }

// Two groups in flight; lanes from `kept` on bring zeros.
KERNEL try_copy_async(uint4* out, const uint4* in, int kept) {
  DYNAMIC_SHARED(memory);
  uint4* stage = (uint4*)memory;
  const int lane = threadIdx.x;
  copy_async_16(stage + lane, in + lane, lane < kept);
  copy_async_commit();
  copy_async_16(stage + 32 + lane, in + 32 + lane, lane < kept);
  copy_async_commit();
  copy_async_wait<1>();
  __syncwarp();
  out[lane] = stage[31 - lane];
  copy_async_wait<0>();
  __syncwarp();
  out[32 + lane] = stage[63 - lane];
}

KERNEL try_load_stream(uint4* wide, uint2* half, u32* word, const uint4* in) {
  const int lane = threadIdx.x;
  wide[lane] = load_stream(in + lane);
  half[lane] = load_stream((const uint2*)in + lane);
  word[lane] = load_stream((const u32*)in + lane);
}

KERNEL try_numbers(const float* x, int count, float* power, u16* half, u16* brain, u32* halves, u32* brains, float* back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  power[i] = exp2_fast(x[i]);
  half[i] = f16_of(x[i]).bits;
  brain[i] = bf16_of(x[i]).bits;
  halves[i] = pack2(x[i], -x[i], f16());
  brains[i] = pack2(x[i], -x[i], bf16());
  back[i] = float_of(f16_of(x[i]));
}

KERNEL try_pairs(const u32* a, const u32* b, u32* half, u32* brain, u32* permuted) {
  const int lane = threadIdx.x;
  half[lane] = subtract2(a[lane], b[lane], f16());
  brain[lane] = subtract2(a[lane], b[lane], bf16());
  permuted[lane] = byte_permute(a[lane], b[lane], 0x6240u);
}
