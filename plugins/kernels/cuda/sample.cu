// One token for each row of logits, without sorting: temperature, top-k, top-p, min-p, draw.  grid (rows).  Before it,
// tokens that must not be drawn become impossible; after it, the ids are inputs of the next step without leaving the device.
//
// The arithmetic is that of the standard sampler: a token's weight is round(2^bits * exp((logit - best) / temperature)) as
// an integer, tokens are ordered by descending logit and then ascending id, each cut keeps a prefix of that order and so is
// one number, the mass kept.  Sums of integers are exact in any order.  A place in the order is found from the top: bins of
// 1/32 of an exponent first, then the bits of the logit, 11 at a time, among the few tokens of one bin.
#include "values.cuh"

#define BINS 2048

struct Histogram {
  u64* mass;
  u32* count;
};
// A place in the order: the mass and the number of tokens before its bin, and what the bin holds.
struct Place {
  u64 mass_before, bin_mass;
  u32 count_before, bin_count;
  int bin;
};
struct Token {
  u64 mass;  // up to and including it
  u32 order; // of its logit, ascending from the best
  u32 rank;  // among the tokens of the same logit, from 1
};

DEVICE u32 order_of(float x) {  // ascending from the best; -0 equals 0
  u32 bits = __float_as_uint(x + 0.f);
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

// The first bin at which the cumulated counts (or masses) reach the goal.  One warp; the place goes to shared memory.
DEVICE void locate(Place* place, Histogram h, u64 mass_before, u32 count_before, u64 goal, bool by_count, int lane) {
  u64 mass = 0;
  u32 count = 0;
  for (int i = lane * (BINS / 32); i < (lane + 1) * (BINS / 32); i++) mass += h.mass[i], count += h.count[i];
  u64 mass_to = mass;
  u32 count_to = count;
#pragma unroll
  for (int s = 1; s < 32; s <<= 1) {
    u64 m = __shfl_up_sync(0xffffffffu, mass_to, s);
    u32 c = __shfl_up_sync(0xffffffffu, count_to, s);
    if (lane >= s) mass_to += m, count_to += c;
  }
  const bool reached = (by_count ? u64(count_before + count_to) : mass_before + mass_to) >= goal;
  const u32 votes = __ballot_sync(0xffffffffu, reached);
  if (!votes || lane != __ffs(votes) - 1) return;
  mass = mass_before + mass_to - mass, count = count_before + count_to - count;
  for (int i = lane * (BINS / 32);; i++) {
    const u64 m = h.mass[i];
    const u32 c = h.count[i];
    if ((by_count ? u64(count + c) : mass + m) >= goal) {
      place->mass_before = mass, place->count_before = count, place->bin_mass = m, place->bin_count = c, place->bin = i;
      return;
    }
    mass += m, count += c;
  }
}

struct Row {
  const float* logits;
  int vocab;
  float best;
  double temperature, scale;  // 2^bits

  DEVICE double exponent(float x) const { return ((double)x - (double)best) / temperature; }
  DEVICE u64 weight(float x) const {
    double e = exponent(x);
    return e > -64. ? (u64)rint(exp(e) * scale) : 0ull;
  }
  DEVICE int bin(float x) const { return (int)fmin(exponent(x) * -32., BINS - 1.); }
};

// The first token at which the count or the mass, cumulated in order, reaches the goal.  Every thread of the block.
DEVICE Token find(const Row& row, Histogram all, Histogram some, Place* place, u64 goal, bool by_count) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (warp == 0) locate(place, all, 0, 0, goal, by_count, lane);
  __syncthreads();  // the bin of the place is known
  const int bin = place->bin;
  u32 prefix = 0;
  int bits = 0;
#pragma unroll 1
  for (int level = 0; level < 3; level++) {
    const int digit = level < 2 ? 11 : 10, shift = 32 - bits - digit;
    const u64 mass_before = place->mass_before;
    const u32 count_before = place->count_before;
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) some.mass[i] = 0, some.count[i] = 0;
    __syncthreads();  // the bins are empty, and the last place was read
    for (int i = threadIdx.x; i < row.vocab; i += blockDim.x) {
      const float x = row.logits[i];
      const u32 order = order_of(x);
      if ((bits == 0 || order >> (32 - bits) == prefix) && row.bin(x) == bin) {
        const u32 at = order >> shift & ((1u << digit) - 1);
        atomicAdd(some.count + at, 1u);
        atomicAdd(some.mass + at, row.weight(x));
      }
    }
    __syncthreads();  // the bins are full
    if (warp == 0) locate(place, some, mass_before, count_before, goal, by_count, lane);
    __syncthreads();  // the next digit of the place is known
    prefix = prefix << digit | u32(place->bin), bits += digit;
  }
  Token token;
  token.order = prefix;
  const u64 each = place->bin_mass / place->bin_count;
  token.rank = by_count ? u32(goal) - place->count_before : u32((goal - place->mass_before + each - 1) / each);
  token.mass = place->mass_before + token.rank * each;
  __syncthreads();  // the place was read
  return token;
}

// Best logit of the row, and what makes it unusable: 2 a NaN, 3 +inf, 4 nothing but -inf; 0 if nothing does.
DEVICE int survey(const float* logits, int vocab, float& best, float* partial) {
  float most = __uint_as_float(0xff800000u);
  bool broken = false;
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    const float x = logits[i];
    broken |= x != x;
    most = fmaxf(most, x);
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, s));
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = most;
  const bool any_broken = __syncthreads_or(broken);
  for (int w = 0; w < blockDim.x >> 5; w++) most = fmaxf(most, partial[w]);
  best = most;
  return any_broken ? 2 : most == __uint_as_float(0x7f800000u) ? 3 : most == __uint_as_float(0xff800000u) ? 4 : 0;
}

// The id of the rank-th token, by ascending id, of those with this order; -1 if there are fewer.
DEVICE int id_of(const float* logits, int vocab, Token token, u32* counts, int* found) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  if (threadIdx.x == 0) *found = -1;
  u32 before = 0;
  for (int first = 0; first < vocab; first += blockDim.x) {
    const int i = first + threadIdx.x;
    const bool equal = i < vocab && order_of(logits[i]) == token.order;
    const u32 votes = __ballot_sync(0xffffffffu, equal);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();  // every warp has counted
    u32 mine = before, total = 0;
    for (int w = 0; w < warps; w++) total += counts[w], mine += w < warp ? counts[w] : 0;
    if (equal && mine + __popc(votes & ((1u << lane) - 1)) + 1 == token.rank) *found = i;
    before += total;
    __syncthreads();  // the counts were read
    if (before >= token.rank) break;
  }
  return *found;
}

KERNEL __launch_bounds__(512, 1) sample(
    int* __restrict__ ids, int* __restrict__ states, const float* __restrict__ logits, const double* __restrict__ temperatures,
    const int* __restrict__ top_ks, const double* __restrict__ top_ps, const double* __restrict__ min_ps,
    const double* __restrict__ uniforms, int vocab, int bits) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  Histogram all, some;
  all.mass = carve.take<u64>(BINS), some.mass = carve.take<u64>(BINS);
  all.count = carve.take<u32>(BINS), some.count = carve.take<u32>(BINS);
  Place* place = carve.take<Place>(1);
  u64* sums = carve.take<u64>(2);
  u32* counts = carve.take<u32>(32);
  int* found = carve.take<int>(1);
  const int lane = threadIdx.x & 31;
  Row row;
  row.logits = logits + (i64)blockIdx.x * vocab, row.vocab = vocab;
  row.temperature = temperatures[blockIdx.x], row.scale = exp2((double)bits);
  const int state = survey(row.logits, vocab, row.best, (float*)counts);
  if (state) {
    if (threadIdx.x == 0) ids[blockIdx.x] = 0, states[blockIdx.x] = state;
    return;
  }
  Token token;
  token.order = order_of(row.best), token.rank = 1, token.mass = 0;
  if (row.temperature > 0.) {
    const int top_k = top_ks[blockIdx.x];
    const double top_p = top_ps[blockIdx.x], min_p = min_ps[blockIdx.x];
    const u64 least = min_p > 0. ? (u64)ceil(min_p * row.scale) : 0ull;
    for (int i = threadIdx.x; i < BINS; i += blockDim.x) all.mass[i] = 0, all.count[i] = 0;
    if (threadIdx.x < 2) sums[threadIdx.x] = 0;
    __syncthreads();  // the bins are empty
    u64 total = 0, likely = 0;
    for (int first = 0; first < vocab; first += blockDim.x) {
      const int i = first + threadIdx.x;
      const float x = i < vocab ? row.logits[i] : 0.f;
      const int bin = row.bin(x);
      const u32 last = __ballot_sync(0xffffffffu, i < vocab && bin == BINS - 1);  // mostly crowded, and weighs nothing
      if (lane == 0 && last) atomicAdd(all.count + BINS - 1, u32(__popc(last)));
      if (i < vocab && bin < BINS - 1) {
        const u64 weight = row.weight(x);
        atomicAdd(all.count + bin, 1u);
        if (weight) atomicAdd(all.mass + bin, weight);
        total += weight, likely += weight >= least ? weight : 0;
      }
    }
    atomicAdd(sums, total);
    atomicAdd(sums + 1, likely);
    __syncthreads();  // the bins are full
    u64 mass = sums[0];
    const u64 likely_mass = sums[1];
    if (top_k > 0 && top_k < vocab) mass = min(mass, find(row, all, some, place, top_k, true).mass);
    if (top_p < 1.) {
      u64 goal = (u64)ceil((double)mass * top_p);
      goal = min(max(goal, 1ull), mass);
      mass = min(mass, find(row, all, some, place, goal, false).mass);
    }
    if (min_p > 0.) mass = min(mass, likely_mass);
    const u64 goal = min((u64)((double)mass * uniforms[blockIdx.x]), mass - 1) + 1;
    token = find(row, all, some, place, goal, false);
  }
  __syncthreads();  // the survey's partial results were read
  const int id = id_of(row.logits, vocab, token, counts, found);
  if (threadIdx.x == 0) ids[blockIdx.x] = id, states[blockIdx.x] = 0;
}

// pairs (row, id): that token cannot be drawn; a NaN stays, so that it is noticed.
KERNEL ban_tokens(float* __restrict__ logits, const int2* __restrict__ pairs, int num_pairs, int vocab) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= num_pairs) return;
  float* x = logits + (i64)pairs[i].x * vocab + pairs[i].y;
  if (*x == *x) *x = __uint_as_float(0xff800000u);
}

// pairs (token, row): the token's id is what that row drew.
KERNEL take_drawn(int* __restrict__ ids, const int* __restrict__ drawn, const int2* __restrict__ pairs, int num_pairs) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num_pairs) ids[pairs[i].x] = drawn[pairs[i].y];
}
