// emulator.h - what kernels use of CUDA C++, on the CPU.  Included before the kernels' text.
// The scheduler lives in runtime.cpp, which is never sanitizer-instrumented, so that with
// -fsanitize=thread/address/undefined only kernel code is checked.
#pragma once
#define CUDA_EMULATOR 1
#include <cstdint>
#include <cstring>
#include <type_traits>

// What kernels use of <cmath>: reading that takes longer than compiling most kernels.
extern "C" {
float exp2f(float) noexcept, expf(float) noexcept, fabsf(float) noexcept, fmaxf(float, float) noexcept;
float fminf(float, float) noexcept, sqrtf(float) noexcept, tanhf(float) noexcept;
double ceil(double) noexcept, exp(double) noexcept, exp2(double) noexcept, fmax(double, double) noexcept;
double fmin(double, double) noexcept, rint(double) noexcept;
long lrintf(float) noexcept;
}

#define __launch_bounds__(...)

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
#define EMU_VEC(T, N) \
  struct alignas(sizeof(T) * 2) N##2 { T x, y; }; \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) N##4 { T x, y, z, w; }; \
  static inline N##2 make_##N##2(T a, T b) { return {a, b}; } \
  static inline N##4 make_##N##4(T a, T b, T c, T d) { return {a, b, c, d}; }
EMU_VEC(float, float) EMU_VEC(int, int) EMU_VEC(unsigned, uint)
#undef EMU_VEC

// ---- runtime interface -------------------------------------------------------------------
struct EmuBlock { dim3 grid, block; uint3 bid; };
struct EmuThread { uint3 tid; EmuBlock* blk; unsigned lane, warp; };
struct EmuConfig { unsigned grid[3], block[3]; uint64_t smem; int order; uint64_t seed; int workers; };
extern "C" {
extern thread_local EmuThread* emu_cur;
[[noreturn]] void emu_fail(const char* fmt, ...);
int emu_sync_block(int line, int pred);  // returns the count of true predicates
void emu_syncwarp(uint32_t mask, int line);
uint64_t emu_shfl(uint32_t mask, uint64_t v, int src, int line);
uint32_t emu_ballot(uint32_t mask, int pred, int line);
void emu_xaddr(uint32_t mask, const void* mine, const void** all, int line);
void emu_mma16816(int bf16, float* d, const uint32_t* a, const uint32_t* b, int line);
void* emu_smem(uint64_t bytes, uint64_t align, int gap);  // bytes==0: the raw buffer
void emu_cp_issue(void* dst, const void* src, int n, int nread);
void emu_cp_commit();
int emu_cp_pop(int keep, void** dst, const void** src, int* n, int* nread);  // 1 while a copy is due
void emu_count_ld(const void* p, int n, int line);
void emu_count_ldsm(const void* const* rows);
int emu_launch(const EmuConfig*, void (*tramp)(void*), void* arg, char* err, uint64_t errn, uint64_t* stats);
}
#define threadIdx (emu_cur->tid)
#define blockIdx (emu_cur->blk->bid)
#define blockDim (emu_cur->blk->block)
#define gridDim (emu_cur->blk->grid)
#define __syncthreads() ((void)emu_sync_block(__LINE__, 0))
#define __syncthreads_or(p) (emu_sync_block(__LINE__, (p) != 0) > 0)
#define __syncthreads_count(p) emu_sync_block(__LINE__, (p) != 0)
#define __trap() emu_fail("__trap() at line %d", __LINE__)
static inline void __syncwarp(uint32_t m = 0xffffffffu, int line = __builtin_LINE()) { emu_syncwarp(m, line); }
static inline unsigned __ballot_sync(uint32_t m, int p, int line = __builtin_LINE()) { return emu_ballot(m, p, line); }
static inline int __any_sync(uint32_t m, int p, int line = __builtin_LINE()) { return emu_ballot(m, p, line) != 0; }
template <class T> static inline T emu_shfl_t(uint32_t m, T v, int src, int line) {
  static_assert(sizeof(T) <= 8, ""); uint64_t u = 0; __builtin_memcpy(&u, &v, sizeof(T));
  u = emu_shfl(m, u, src, line); __builtin_memcpy(&v, &u, sizeof(T)); return v;
}
template <class T> static inline T __shfl_sync(uint32_t m, T v, int s, int w = 32, int line = __builtin_LINE()) {
  int l = emu_cur->lane; return emu_shfl_t(m, v, (l & ~(w - 1)) | (s & (w - 1)), line); }
template <class T> static inline T __shfl_xor_sync(uint32_t m, T v, int x, int w = 32, int line = __builtin_LINE()) {
  int l = emu_cur->lane, s = l ^ x; return emu_shfl_t(m, v, s > (l | (w - 1)) ? l : s, line); }
template <class T> static inline T __shfl_down_sync(uint32_t m, T v, unsigned d, int w = 32, int line = __builtin_LINE()) {
  int l = emu_cur->lane, s = l + int(d); return emu_shfl_t(m, v, s > (l | (w - 1)) ? l : s, line); }
template <class T> static inline T __shfl_up_sync(uint32_t m, T v, unsigned d, int w = 32, int line = __builtin_LINE()) {
  int l = emu_cur->lane, s = l - int(d); return emu_shfl_t(m, v, s < (l & ~(w - 1)) ? l : s, line); }

// atomics are relaxed, as on the device; __threadfence orders nothing for the race detector
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
template <class T> static inline T atomicAdd(T* p, std::common_type_t<T> v) {
  if constexpr (std::is_integral_v<T>) return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
  else { T o = *(volatile T*)p, n; do { n = o + v; } while (!__atomic_compare_exchange(p, &o, &n, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); return o; }
}
template <class T> static inline T atomicMax(T* p, std::common_type_t<T> v) {
  T o; __atomic_load(p, &o, __ATOMIC_RELAXED);
  while (o < v && !__atomic_compare_exchange(p, &o, &v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {} return o; }

// ---- fp16 / bf16 ---------------------------------------------------------------------------
namespace emu {
static inline uint32_t f2u(float f) { uint32_t u; __builtin_memcpy(&u, &f, 4); return u; }
static inline float u2f(uint32_t u) { float f; __builtin_memcpy(&f, &u, 4); return f; }
static inline uint16_t f2bf(float f) {
  uint32_t u = f2u(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
static inline float bf2f(uint16_t h) { return u2f(uint32_t(h) << 16); }
static inline uint16_t f2h(float f) {
  uint32_t u = f2u(f), s = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
  if (m > 0x7f800000u) return 0x7fff;
  if (m >= 0x47800000u) return uint16_t(s | 0x7c00u);
  if (m < 0x38800000u) return uint16_t(s | (f2u(u2f(m) + 0.5f) - 0x3f000000u));  // FPU rounds at 2^-24
  return uint16_t(s | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1)) >> 13));
}
static inline float h2f(uint16_t h) {
  uint32_t s = uint32_t(h & 0x8000u) << 16, e = (h >> 10) & 31, m = h & 0x3ffu;
  if (e == 31) return u2f(s | 0x7f800000u | (m << 13));
  if (e) return u2f(s | ((e + 112) << 23) | (m << 13));
  return u2f(s | f2u(float(m) * 0x1p-24f));
}
}  // namespace emu
static inline float __uint_as_float(unsigned u) { return emu::u2f(u); }
static inline unsigned __float_as_uint(float f) { return emu::f2u(f); }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float emu_div(float a, float b) { return a / b; }
#define __fdividef emu_div
#define __fdiv_rn emu_div
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
static inline int __float2int_rn(float x) {  // saturates, and a NaN is zero
  return x != x ? 0 : x >= 2147483648.f ? 2147483647 : x <= -2147483648.f ? -2147483647 - 1 : int(lrintf(x));
}

// ---- kernel entry: void** arguments exactly as cuLaunchKernel takes them ---------------------
namespace emu {
template <class T> constexpr int kind() { return std::is_pointer_v<T> ? 'p' : std::is_floating_point_v<T> ? 'f' : std::is_same_v<T, bool> ? 'b' : std::is_integral_v<T> ? 'i' : 's'; }
template <class... A> struct Call { void (*fn)(A...); void** args; };
template <int... I> struct Places {};
template <class... A, int... I> void go(Call<A...>* c, Places<I...>) { c->fn(*(std::remove_const_t<A>*)c->args[I]...); }
template <class... A> void tramp(void* p) { go((Call<A...>*)p, Places<__integer_pack(int(sizeof...(A)))...>{}); }
template <class... A> int launch(void (*fn)(A...), const EmuConfig* c, void** args, char* err, uint64_t n, uint64_t* st) {
  Call<A...> call{fn, args}; return emu_launch(c, &tramp<A...>, &call, err, n, st);
}
template <class... A> int sig(void (*)(A...), int* out) { int i = 0; ((out[i++] = kind<A>() << 16 | int(sizeof(A))), ...); return i; }
}  // namespace emu
#define EMU_EXPORT(ID, ...) \
  extern "C" int emu_k##ID(const EmuConfig* c, void** a, char* e, uint64_t n, uint64_t* s) { return emu::launch(&__VA_ARGS__, c, a, e, n, s); } \
  extern "C" int emu_s##ID(int* o) { return emu::sig(&__VA_ARGS__, o); }
