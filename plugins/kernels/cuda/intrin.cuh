// What needs PTX, each as one small function.  Kernels hold no assembly and no #ifdef: the CPU emulator of the tests
// brings its own bodies for everything between the two branches below, and for nothing else.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// 16-bit floats by their bits.  Own types, so that no header of the toolkit has to be found and parsed.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef CUDA_EMULATOR
#include "intrin_emulated.h"
#else
#define KERNEL __global__ void
#define DEVICE __device__ __forceinline__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// Hands out sub-arrays of dynamic shared memory.
struct Carve {
  unsigned char* base;
  u32 used;
  DEVICE Carve(unsigned char* start) : base(start), used(0) {}
  template <class T> DEVICE T* take(int count, int align = 16) {
    used = (used + align - 1) & ~u32(align - 1);
    T* array = (T*)(base + used);
    used += u32(count) * sizeof(T);
    return array;
  }
};

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes from global to shared memory, behind the thread's back; zeros where not ok.
DEVICE void copy_async_16(void* to, const void* from, bool ok) {
  int bytes = ok ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int KEEP> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(KEEP) : "memory"); }

DEVICE void ldmatrix_x4(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// d (16 x 8, float) += a (16 x 16) * b (16 x 8); the last argument only names the type of a and b.
DEVICE void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// An 8 x 8 matrix of 16-bit values, one register a lane, transposed across the warp.
DEVICE u32 movmatrix_trans(u32 a) {
  u32 d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}
// Loads that pass by the first cache: the KV pool is read once.
DEVICE uint4 load_stream(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
DEVICE uint2 load_stream(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
DEVICE u32 load_stream(const u32* p) {
  u32 v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// x, but the compiler does not know that: what is computed from it stays in the loop instead of in registers.
DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
DEVICE float float_of(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
DEVICE f16 f16_of(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
DEVICE u32 pack2(float low, float high, f16) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return u32(f16_of(low).bits) | u32(f16_of(high).bits) << 16;
#endif
}
DEVICE bf16 bf16_of(float x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  u32 u = __float_as_uint(x);
  y.bits = (u & 0x7fffffffu) > 0x7f800000u ? u16(0x7fff) : u16((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
#endif
  return y;
}
DEVICE u32 pack2(float low, float high, bf16) {
#if __CUDA_ARCH__ >= 800
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
#else
  return u32(bf16_of(low).bits) | u32(bf16_of(high).bits) << 16;
#endif
}
// a - b on pairs of 16-bit floats
DEVICE u32 subtract2(u32 a, u32 b, f16) {
  u32 y;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
DEVICE u32 subtract2(u32 a, u32 b, bf16) {  // as b * -1 + a: sm_80 has no other
  u32 y, minus_one = 0xbf80bf80u;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(b), "r"(minus_one), "r"(a));
  return y;
}
#endif
