// The CPU's bodies for what plugins/kernels/cuda/intrin.cuh does with PTX.
#define KERNEL static void
#define DEVICE inline __attribute__((always_inline))
#define DYNAMIC_SHARED(name) unsigned char* name = (unsigned char*)emu_smem(0, 16, 1)

struct Carve {
  Carve(unsigned char*) { emu_smem(0, 16, 1); }
  template <class T> T* take(int count, int align = 16) { return (T*)emu_smem(u64(count) * sizeof(T), align, 0); }
};

// The copy is made at the wait; until then the destination is undefined: NaN.
DEVICE void copy_async_16(void* to, const void* from, bool ok) {
  emu_cp_issue(to, from, 16, ok ? 16 : 0);
  ((u64*)to)[0] = ((u64*)to)[1] = ~0ull;
}
DEVICE void copy_async_commit() { emu_cp_commit(); }
template <int KEEP> DEVICE void copy_async_wait() {
  void* to;
  const void* from;
  int bytes, read;
  while (emu_cp_pop(KEEP, &to, &from, &bytes, &read)) {
    ((u64*)to)[0] = read ? ((const u64*)from)[0] : 0;
    ((u64*)to)[1] = read ? ((const u64*)from)[1] : 0;
  }
}
static inline void emu_ldmatrix_rows(const void* row, const void* (&all)[32], int line) {
  emu_xaddr(0xffffffffu, row, all, line);
  for (int i = 0; i < 32; i++)
    if ((uintptr_t)all[i] & 15) emu_fail("ldmatrix at line %d: row address of lane %d not 16-byte aligned", line, i);
  if (emu_cur->lane == 0)
    for (int j = 0; j < 4; j++) emu_count_ldsm(all + 8 * j);
}
static inline void ldmatrix_x4(u32 (&r)[4], const void* row, int line = __builtin_LINE()) {
  const void* all[32];
  emu_ldmatrix_rows(row, all, line);
  int l = emu_cur->lane;
  for (int j = 0; j < 4; j++) r[j] = ((const u32*)all[8 * j + (l >> 2)])[l & 3];
}
static inline void ldmatrix_x4_trans(u32 (&r)[4], const void* row, int line = __builtin_LINE()) {
  const void* all[32];
  emu_ldmatrix_rows(row, all, line);
  int l = emu_cur->lane;
  for (int j = 0; j < 4; j++)
    r[j] = ((const u16*)all[8 * j + (l & 3) * 2])[l >> 2] | u32(((const u16*)all[8 * j + (l & 3) * 2 + 1])[l >> 2]) << 16;
}
static inline void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16, int line = __builtin_LINE()) {
  u32 b[2] = {b0, b1};
  emu_mma16816(1, d, a, b, line);
}
static inline void mma_16x8x16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, f16, int line = __builtin_LINE()) {
  u32 b[2] = {b0, b1};
  emu_mma16816(0, d, a, b, line);
}
static inline u32 movmatrix_trans(u32 a, int line = __builtin_LINE()) {
  int l = emu_cur->lane, r = (l & 3) * 2, c = l >> 2;
  const void* all[32];
  emu_xaddr(0xffffffffu, (const void*)(uintptr_t)a, all, line);
  auto at = [&](int row, int col) { return u32((uintptr_t)all[row * 4 + (col >> 1)] >> (16 * (col & 1))) & 0xffffu; };
  return at(r, c) | at(r + 1, c) << 16;
}
template <class V> static inline V load_stream(const V* p, int line = __builtin_LINE()) {
  emu_count_ld(p, sizeof(V), line);
  return *p;
}
DEVICE float exp2_fast(float x) { return exp2f(x); }
DEVICE int opaque(int x) { return x; }
DEVICE u32 byte_permute(u32 a, u32 b, u32 selector) {
  u64 bytes = u64(b) << 32 | a;
  u32 r = 0;
  for (int i = 0; i < 4; i++) r |= u32(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  return r;
}
DEVICE float float_of(f16 x) { return emu::h2f(x.bits); }
DEVICE f16 f16_of(float x) { return {emu::f2h(x)}; }
DEVICE bf16 bf16_of(float x) { return {emu::f2bf(x)}; }
DEVICE u32 pack2(float low, float high, f16) { return u32(emu::f2h(low)) | u32(emu::f2h(high)) << 16; }
DEVICE u32 pack2(float low, float high, bf16) { return u32(emu::f2bf(low)) | u32(emu::f2bf(high)) << 16; }
DEVICE u32 subtract2(u32 a, u32 b, f16) {
  return pack2(emu::h2f(u16(a)) - emu::h2f(u16(b)), emu::h2f(u16(a >> 16)) - emu::h2f(u16(b >> 16)), f16());
}
DEVICE u32 subtract2(u32 a, u32 b, bf16) {
  return pack2(emu::bf2f(u16(a)) - emu::bf2f(u16(b)), emu::bf2f(u16(a >> 16)) - emu::bf2f(u16(b >> 16)), bf16());
}
