// The small operators between matrix products, one pass each over their rows.
#include "values.cuh"

DEVICE float block_sum(float x, float* partial) {  // the same for every thread; partial: one float a warp
#pragma unroll
  for (int s = 16; s; s >>= 1) x += __shfl_xor_sync(0xffffffffu, x, s);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = x;
  __syncthreads();  // one partial sum a warp is there
  float total = 0.f;
  for (int w = 0; w < blockDim.x >> 5; w++) total += partial[w];
  return total;
}

// residual += x (where given), out = residual / rms(residual) * weight.  grid (rows), any number of whole warps.
template <class T, bool RESIDUAL>
KERNEL rms_norm(T* __restrict__ out, T* __restrict__ residual, const T* __restrict__ x, const T* __restrict__ weight, int width, float eps) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  float* partial = carve.take<float>(blockDim.x >> 5);
  const T* row = x + (i64)blockIdx.x * width;
  T* sum_row = residual + (RESIDUAL ? (i64)blockIdx.x * width : 0);
  float squares = 0.f;
  for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
    float4 v = load_four(row + i);
    if constexpr (RESIDUAL) {
      float4 r = load_four(sum_row + i);
      v = make_float4(v.x + r.x, v.y + r.y, v.z + r.z, v.w + r.w);
      store_four(sum_row + i, v);
      v = load_four(sum_row + i);  // as rounded
    }
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float scale = rsqrtf(block_sum(squares, partial) / width + eps);
  for (int i = threadIdx.x * 4; i < width; i += blockDim.x * 4) {
    float4 v = load_four((RESIDUAL ? sum_row : row) + i), w = load_four(weight + i);
    store_four(out + (i64)blockIdx.x * width + i, make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w));
  }
}

// Root-mean-square norm of query and key heads in place.  grid (tokens), one warp a head at a time.
template <class T, int D>
KERNEL norm_heads(T* __restrict__ qkv, const T* __restrict__ query, const T* __restrict__ key, int num_heads, int num_kv_heads, i64 stride, float eps) {
  constexpr int E = (D / 4 + 31) / 32;
  const int lane = threadIdx.x & 31;
  for (int h = threadIdx.x >> 5; h < num_heads + num_kv_heads; h += blockDim.x >> 5) {
    T* head = qkv + blockIdx.x * stride + (i64)h * D;
    const T* weight = h < num_heads ? query : key;
    float4 v[E];
    float squares = 0.f;
#pragma unroll
    for (int e = 0; e < E; e++)
      if (int i = (lane + 32 * e) * 4; i < D) {
        v[e] = load_four(head + i);
        squares += v[e].x * v[e].x + v[e].y * v[e].y + v[e].z * v[e].z + v[e].w * v[e].w;
      }
#pragma unroll
    for (int s = 16; s; s >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, s);
    const float scale = rsqrtf(squares / D + eps);
#pragma unroll
    for (int e = 0; e < E; e++)
      if (int i = (lane + 32 * e) * 4; i < D) {
        float4 w = load_four(weight + i);
        store_four(head + i, make_float4(v[e].x * scale * w.x, v[e].y * scale * w.y, v[e].z * scale * w.z, v[e].w * scale * w.w));
      }
  }
}

// out[row, i] = silu(x[row, i]) * x[row, width + i].  grid (chunks, rows).
template <class T>
KERNEL silu_mul(T* __restrict__ out, const T* __restrict__ x, int width) {
  const T* gate = x + (i64)blockIdx.y * 2 * width;
  for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4; i < width; i += gridDim.x * blockDim.x * 4) {
    float4 g = load_four(gate + i), u = load_four(gate + width + i);
    float4 y = make_float4(g.x / (1.f + expf(-g.x)) * u.x, g.y / (1.f + expf(-g.y)) * u.y, g.z / (1.f + expf(-g.z)) * u.z, g.w / (1.f + expf(-g.w)) * u.w);
    store_four(out + (i64)blockIdx.y * width + i, y);
  }
}
