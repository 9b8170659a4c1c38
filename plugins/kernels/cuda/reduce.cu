// Parts of a row's attention (splits of its context, a prefix it shares) -> its result.
// grid (num_heads, rows), D threads.  Of the first prefix_slots parts only prefix_parts[row] were written.
#include "attention.cuh"

template <class T, int D>
KERNEL reduce(T* __restrict__ out, const float* __restrict__ part_out, const float2* __restrict__ part_ml,
              const int2* __restrict__ entries, const int* __restrict__ prefix_parts, int prefix_slots, int num_slots) {
  const i64 row = (i64)blockIdx.y * gridDim.x + blockIdx.x;
  const int d = threadIdx.x, token = entries ? entries[blockIdx.y].y : blockIdx.y;
  const int unwritten = prefix_slots ? prefix_parts[blockIdx.y] : 0;
  const float2* ml = part_ml + row * num_slots;
  const float* o = part_out + row * num_slots * D;
  float best = MASKED, sum = 0.f, value = 0.f;
  for (int s = 0; s < num_slots; s++)
    if (s < unwritten || s >= prefix_slots) best = fmaxf(best, ml[s].x);
  for (int s = 0; s < num_slots; s++)
    if (s < unwritten || s >= prefix_slots) {
      float weight = exp2_fast(ml[s].x - best) * ml[s].y;
      sum += weight;
      value += weight * o[(i64)s * D + d];
    }
  out[((i64)token * gridDim.x + blockIdx.x) * D + d] = To<T>::from(sum > 0.f ? value / sum : 0.f);
}
