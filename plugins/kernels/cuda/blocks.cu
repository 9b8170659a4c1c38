// Whole blocks from one pool to another (or the same), in every layer, in units of 16, 4 or 1 bytes.
// grid (chunks, pairs, layers); pairs (source, target) of one launch depend on none of each other.
#include "intrin.cuh"

template <class U>
KERNEL copy_blocks(const U* __restrict__ from, U* __restrict__ to, const int2* __restrict__ pairs, i64 block_units, i64 from_layer, i64 to_layer) {
  const int2 pair = pairs[blockIdx.y];
  const U* source = from + blockIdx.z * from_layer + pair.x * block_units;
  U* target = to + blockIdx.z * to_layer + pair.y * block_units;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < block_units; i += (i64)gridDim.x * blockDim.x) target[i] = source[i];
}
