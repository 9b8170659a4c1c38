// runtime.cpp - fibre scheduler for emulator.h. Build without -fsanitize flags, with
// -DEMU_ASAN=1 or -DEMU_TSAN=1 when the kernel unit is built with that sanitizer, and with
// -fno-tree-loop-distribute-patterns so that no copy loop becomes an intercepted memcpy.
#include "emulator.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>
#include <sys/mman.h>
#include <unistd.h>
#include <pthread.h>
#ifndef EMU_ASAN
#define EMU_ASAN 0
#endif
#ifndef EMU_TSAN
#define EMU_TSAN 0
#endif
extern "C" {
#if EMU_ASAN
void __sanitizer_start_switch_fiber(void**, const void*, size_t);
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
void __asan_poison_memory_region(void const volatile*, size_t);
void __asan_unpoison_memory_region(void const volatile*, size_t);
#endif
#if EMU_TSAN
void* __tsan_create_fiber(unsigned); void __tsan_destroy_fiber(void*); void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void*, unsigned); void __tsan_acquire(void*); void __tsan_release(void*);
#endif
void emu_switch(void** save, void* load);
}
#if defined(__x86_64__)
asm(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
#else
#error "x86-64 only; use swapcontext() elsewhere"
#endif

namespace {
constexpr size_t STACK = (EMU_ASAN || EMU_TSAN) ? 512 << 10 : 128 << 10;
constexpr size_t GUARD = 4096;
enum St : uint8_t { READY, W_WARP, W_BLOCK, DONE };
struct Cp { void* dst; const void* src; int n, nread, group; };
struct Fib {
  EmuThread t; void* sp; char* stack; St st; uint32_t mask; int line; unsigned wpar, bpar, xpar; int lane, warp;
  void *tsan, *fake; Cp* cps; int ncp, group; int pred; size_t smoff, smdev;
};
struct Slot { uint64_t q[8]; };
struct Warp { Slot in[2][32]; Slot out[2][32]; uint32_t waiting; int sync_obj[2]; };
std::atomic<uint64_t> g_stats[8];  // 0 collectives 1 mma 2 ldmatrix 3 ldmatrix extra wavefronts 4 global bytes 5 global sectors 6 cp.async bytes
int g_end;
struct Engine {
  EmuBlock blk; Fib* f = nullptr; Warp* w = nullptr; unsigned nthr = 0, nwarp = 0, ndone = 0, nblockwait = 0; int pcount = 0, pres = 0;
  void *main_sp = nullptr, *main_fake = nullptr, *main_tsan = nullptr; const void* mb = nullptr; size_t ms = 0;
  unsigned char *arena = nullptr; size_t arena_n = 0, declared = 0, used = 0, gaps = 0; char* stacks = nullptr; size_t stacks_n = 0;
  void (*tramp)(void*); void* arg; char err[1024]; bool failed = false; int order = 0; uint64_t rng = 1; int bsync[2]; Cp* cps = nullptr; unsigned* ord = nullptr;
};
thread_local Engine* eng;
thread_local Fib* self;
void* grab(size_t n) { return mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }
constexpr int MAXCP = 512;  // cp.async copies one thread may have in flight
uint64_t rnd(Engine* e) { uint64_t x = e->rng; x ^= x << 13; x ^= x >> 7; x ^= x << 17; return e->rng = x; }

void swtch(Fib* from, Fib* to) {
  Engine* e = eng;
#if EMU_TSAN
  __tsan_switch_to_fiber(to ? to->tsan : e->main_tsan, 1);  // 1: the switch orders nothing
#endif
#if EMU_ASAN
  __sanitizer_start_switch_fiber(from && from->st == DONE ? nullptr : from ? &from->fake : &e->main_fake, to ? to->stack : e->mb, to ? STACK : e->ms);
#endif
  self = to; emu_cur = to ? &to->t : nullptr;
  emu_switch(from ? &from->sp : &e->main_sp, to ? to->sp : e->main_sp);
#if EMU_ASAN
  __sanitizer_finish_switch_fiber(from ? from->fake : e->main_fake, nullptr, nullptr);
#endif
}
void entry() {
  Engine* e = eng;
#if EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  Fib* me = self;
  e->tramp(e->arg);
  if (me->ncp) emu_fail("thread (%u,%u,%u) exits with %d cp.async not waited for", me->t.tid.x, me->t.tid.y, me->t.tid.z, me->ncp);
#if EMU_TSAN
  __tsan_release(&g_end);  // a launch is over when all its threads are: only the host learns of it
#endif
  me->st = DONE; e->ndone++;
  swtch(me, nullptr);
  abort();
}
const char* st_name(St s) { return s == W_WARP ? "warp collective" : s == W_BLOCK ? "__syncthreads" : s == DONE ? "exited" : "ready"; }

// returns when all lanes of mask are here; fn(warp, mask, parity) runs once on the last lane
template <class Fn> void warp_wait(uint32_t mask, int line, Fn fn) {
  Engine* e = eng; Fib* me = self; Warp& w = e->w[me->warp]; Fib* base = e->f + me->warp * 32;
  if (!(mask >> me->lane & 1)) emu_fail("line %d: lane %d calls a warp collective with mask %08x that leaves it out", line, me->lane, mask);
  me->mask = mask; me->line = line; w.waiting |= 1u << me->lane;
  g_stats[0].fetch_add(1, std::memory_order_relaxed);
  if ((w.waiting & mask) == mask) {
    for (int l = 0; l < 32; l++) if ((mask >> l & 1) && (base[l].mask != mask || base[l].line != line))
      emu_fail("warp %d: lane %d is at the collective of line %d (mask %08x), lane %d at line %d (mask %08x)", me->warp, me->lane, line, mask, l, base[l].line, base[l].mask);
    fn(w, mask);
    w.waiting &= ~mask;
    for (int l = 0; l < 32; l++) if (mask >> l & 1) base[l].st = READY;
    if (e->order >= 2 && (rnd(e) & 1)) swtch(me, nullptr);
  } else { me->st = W_WARP; swtch(me, nullptr); }
}
void deadlock(Engine* e) {
  int n = 0; char* p = e->err; size_t left = sizeof e->err;
  auto put = [&](const char* fmt, auto... a) { int k = snprintf(p, left, fmt, a...); if (k > 0 && size_t(k) < left) { p += k; left -= k; } };
  put("deadlock in block (%u,%u,%u): %u of %u threads exited;", e->blk.bid.x, e->blk.bid.y, e->blk.bid.z, e->ndone, e->nthr);
  int last_line = -1; St last = READY;
  for (unsigned i = 0; i < e->nthr && n < 6; i++) if (e->f[i].st != last || (e->f[i].st != DONE && e->f[i].line != last_line)) {
    put(" thread %u.. %s%s%d;", i, st_name(e->f[i].st), e->f[i].st == DONE ? " #" : " line ", e->f[i].line); last = e->f[i].st; last_line = e->f[i].line; n++; }
  e->failed = true;
}
void setup(Engine* e, const EmuConfig* c) {
  e->blk.grid = {c->grid[0], c->grid[1], c->grid[2]}; e->blk.block = {c->block[0], c->block[1], c->block[2]};
  e->nthr = c->block[0] * c->block[1] * c->block[2]; e->nwarp = (e->nthr + 31) / 32;
  e->f = (Fib*)grab(e->nthr * sizeof(Fib)); e->w = (Warp*)grab(e->nwarp * sizeof(Warp)); e->cps = (Cp*)grab(e->nthr * MAXCP * sizeof(Cp)); e->ord = (unsigned*)grab(e->nthr * sizeof(unsigned));
  e->declared = c->smem; e->arena_n = c->smem + 64 * 256 + 4096;
  e->stacks_n = (STACK + GUARD) * e->nthr;
#if !EMU_TSAN
  e->stacks = (char*)mmap(0, e->stacks_n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (unsigned i = 0; i < e->nthr; i++) mprotect(e->stacks + i * (STACK + GUARD), GUARD, PROT_NONE);
  e->arena = (unsigned char*)mmap(0, e->arena_n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
  e->order = c->order;
#if EMU_ASAN
  pthread_attr_t at; void* sb; size_t ss; pthread_getattr_np(pthread_self(), &at); pthread_attr_getstack(&at, &sb, &ss); pthread_attr_destroy(&at);
  e->mb = sb; e->ms = ss;
#endif
#if EMU_TSAN
  e->main_tsan = __tsan_get_current_fiber();
#endif
}
void teardown(Engine* e) {
  munmap(e->f, e->nthr * sizeof(Fib)); munmap(e->w, e->nwarp * sizeof(Warp)); munmap(e->cps, e->nthr * MAXCP * sizeof(Cp)); munmap(e->ord, e->nthr * sizeof(unsigned));
#if !EMU_TSAN
#if EMU_ASAN
  __asan_unpoison_memory_region(e->arena, e->arena_n); __asan_unpoison_memory_region(e->stacks, e->stacks_n);
#endif
  munmap(e->stacks, e->stacks_n); munmap(e->arena, e->arena_n);
#endif
}
void run_block(Engine* e, uint64_t b) {
  unsigned gx = e->blk.grid.x, gy = e->blk.grid.y;
  e->blk.bid = {unsigned(b % gx), unsigned(b / gx % gy), unsigned(b / gx / gy)};
  e->ndone = e->nblockwait = 0; e->used = e->gaps = 0; e->pcount = 0;
#if EMU_TSAN
  // fresh mappings per block: stacks and shared memory never alias across blocks for the detector
  e->stacks = (char*)mmap(0, e->stacks_n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  e->arena = (unsigned char*)mmap(0, e->arena_n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
#if EMU_ASAN
  __asan_unpoison_memory_region(e->arena, e->arena_n);
#endif
  for (size_t i = 0; i < e->arena_n / 8; i++) ((volatile uint64_t*)e->arena)[i] = ~0ull;  // NaN in fp32, fp16 and bf16
#if EMU_ASAN
  __asan_poison_memory_region(e->arena + e->declared, e->arena_n - e->declared);
#endif
  unsigned bx = e->blk.block.x, by = e->blk.block.y;
  for (unsigned i = 0; i < e->nthr; i++) {
    Fib& f = e->f[i]; f.t.tid = {i % bx, i / bx % by, i / bx / by}; f.t.blk = &e->blk; f.lane = f.t.lane = i & 31; f.warp = f.t.warp = i >> 5;
    f.st = READY; f.mask = 0; f.line = 0; f.wpar = f.bpar = f.xpar = 0; f.ncp = f.group = 0; f.fake = nullptr; f.cps = e->cps + i * MAXCP;
    f.stack = e->stacks + i * (STACK + GUARD) + GUARD;
#if EMU_ASAN
    __asan_unpoison_memory_region(f.stack, STACK);
#endif
    uintptr_t a = (uintptr_t(f.stack) + STACK - 64) & ~uintptr_t(15);
    *(void**)a = (void*)&entry; f.sp = (void*)(a - 48);
#if EMU_TSAN
    f.tsan = __tsan_create_fiber(1);
#endif
  }
  for (unsigned i = 0; i < e->nwarp; i++) e->w[i].waiting = 0;
  unsigned* ord = e->ord;
  for (unsigned i = 0; i < e->nthr; i++) ord[i] = e->order == 1 ? e->nthr - 1 - i : i;
  auto mix = [&](unsigned* v, unsigned n) { for (unsigned i = n; i-- > 1;) { unsigned j = rnd(e) % (i + 1), t = v[i]; v[i] = v[j]; v[j] = t; } };
  while (e->ndone < e->nthr && !e->failed) {
    bool ran = false;
    if (e->order == 3) {  // run-ahead: one random warp at a time, as far as the next block barrier
      unsigned wp[32]; for (unsigned i = 0; i < e->nwarp; i++) wp[i] = i;
      mix(wp, e->nwarp);
      for (unsigned k = 0; k < e->nwarp && !e->failed; k++) {
        unsigned b0 = wp[k] * 32, n = e->nthr - b0 < 32 ? e->nthr - b0 : 32;
        for (bool more = true; more && !e->failed;) {
          more = false; mix(ord + b0, n);
          for (unsigned i = 0; i < n && !e->failed; i++) { Fib* f = e->f + ord[b0 + i]; if (f->st == READY) { more = ran = true; swtch(nullptr, f); } }
        }
      }
    } else {
      if (e->order == 2) mix(ord, e->nthr);
      for (unsigned k = 0; k < e->nthr && !e->failed; k++) { Fib* f = e->f + ord[k]; if (f->st == READY) { ran = true; swtch(nullptr, f); } }
    }
    if (!ran && !e->failed) deadlock(e);
  }
#if EMU_TSAN
  for (unsigned i = 0; i < e->nthr; i++) __tsan_destroy_fiber(e->f[i].tsan);
  munmap(e->stacks, e->stacks_n); munmap(e->arena, e->arena_n);
#endif
}
}  // namespace

extern "C" {
thread_local EmuThread* emu_cur;
void emu_fail(const char* fmt, ...) {
  Engine* e = eng; va_list ap; va_start(ap, fmt); int k = snprintf(e->err, sizeof e->err, "block (%u,%u,%u): ", e->blk.bid.x, e->blk.bid.y, e->blk.bid.z);
  vsnprintf(e->err + k, sizeof e->err - k, fmt, ap); va_end(ap); e->failed = true;
  swtch(self, nullptr); abort();
}
int emu_sync_block(int line, int pred) {
  Engine* e = eng; Fib* me = self; g_stats[0].fetch_add(1, std::memory_order_relaxed);
#if EMU_TSAN
  __tsan_release(&e->bsync[me->bpar & 1]);
#endif
  me->line = line; me->pred = pred; e->nblockwait++;
  if (e->nblockwait == e->nthr) {
    int c = 0;
    for (unsigned i = 0; i < e->nthr; i++) { if (e->f[i].line != line) emu_fail("threads %u and %u meet in __syncthreads of different lines (%d, %d)", me->t.tid.x, i, line, e->f[i].line); c += e->f[i].pred; }
    e->pres = c; e->nblockwait = 0;
    for (unsigned i = 0; i < e->nthr; i++) e->f[i].st = READY;
    if (e->order) swtch(me, nullptr);
  } else { me->st = W_BLOCK; swtch(me, nullptr); }
#if EMU_TSAN
  __tsan_acquire(&e->bsync[me->bpar & 1]);
#endif
  me->bpar++;
  return e->pres;
}
void emu_syncwarp(uint32_t mask, int line) {
  Fib* me = self; Warp& w = eng->w[me->warp]; (void)w;
#if EMU_TSAN
  __tsan_release(&w.sync_obj[me->wpar & 1]);
#endif
  warp_wait(mask, line, [](Warp&, uint32_t) {});
#if EMU_TSAN
  __tsan_acquire(&w.sync_obj[me->wpar & 1]);
#endif
  me->wpar++;
}
uint64_t emu_shfl(uint32_t mask, uint64_t v, int src, int line) {
  Fib* me = self; Warp& w = eng->w[me->warp]; unsigned p = me->xpar++ & 1;
  if (src < 0 || src > 31 || !(mask >> src & 1)) emu_fail("line %d: lane %d shuffles from lane %d outside mask %08x", line, me->lane, src, mask);
  w.in[p][me->lane].q[0] = v;
  warp_wait(mask, line, [](Warp&, uint32_t) {});
  return w.in[p][src].q[0];
}
uint32_t emu_ballot(uint32_t mask, int pred, int line) {
  Fib* me = self; Warp& w = eng->w[me->warp]; unsigned p = me->xpar++ & 1;
  w.in[p][me->lane].q[0] = pred != 0;
  warp_wait(mask, line, [](Warp&, uint32_t) {});
  uint32_t r = 0; for (int l = 0; l < 32; l++) if (mask >> l & 1) r |= uint32_t(w.in[p][l].q[0]) << l;
  return r;
}
void emu_xaddr(uint32_t mask, const void* mine, const void** all, int line) {
  Fib* me = self; Warp& w = eng->w[me->warp]; unsigned p = me->xpar++ & 1;
  w.in[p][me->lane].q[0] = (uint64_t)mine;
  warp_wait(mask, line, [](Warp&, uint32_t) {});
  for (int l = 0; l < 32; l++) all[l] = (const void*)w.in[p][l].q[0];
}
// D(16x8) += A(16x16) B(16x8), fragments as in the PTX ISA for mma.m16n8k16 with 16-bit inputs
void emu_mma16816(int bf16, float* d, const uint32_t* a, const uint32_t* b, int line) {
  Fib* me = self; Warp& w = eng->w[me->warp]; unsigned p = me->xpar++ & 1;
  Slot& s = w.in[p][me->lane];
  s.q[0] = a[0] | uint64_t(a[1]) << 32; s.q[1] = a[2] | uint64_t(a[3]) << 32; s.q[2] = b[0] | uint64_t(b[1]) << 32;
  for (int i = 0; i < 2; i++) s.q[3 + i] = emu::f2u(d[2 * i]) | uint64_t(emu::f2u(d[2 * i + 1])) << 32;
  warp_wait(0xffffffffu, line, [&](Warp& W, uint32_t) {
    float A[16][16], B[16][8], C[16][8];
    auto cv = [&](uint64_t q, int i) { uint16_t h = uint16_t(q >> (16 * i)); return bf16 ? emu::bf2f(h) : emu::h2f(h); };
    for (int l = 0; l < 32; l++) {
      Slot& t = W.in[p][l]; int g = l >> 2, c = (l & 3) * 2;
      for (int e = 0; e < 2; e++) {
        A[g][c + e] = cv(t.q[0], e); A[g + 8][c + e] = cv(t.q[0], 2 + e); A[g][c + 8 + e] = cv(t.q[1], e); A[g + 8][c + 8 + e] = cv(t.q[1], 2 + e);
        B[c + e][g] = cv(t.q[2], e); B[c + 8 + e][g] = cv(t.q[2], 2 + e);
        C[g][c + e] = emu::u2f(uint32_t(t.q[3] >> (32 * e))); C[g + 8][c + e] = emu::u2f(uint32_t(t.q[4] >> (32 * e)));
      }
    }
    for (int i = 0; i < 16; i++) for (int k = 0; k < 16; k++) for (int j = 0; j < 8; j++) C[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++) { Slot& t = W.out[p][l]; int g = l >> 2, c = (l & 3) * 2;
      for (int i = 0; i < 2; i++) t.q[i] = emu::f2u(C[g + 8 * i][c]) | uint64_t(emu::f2u(C[g + 8 * i][c + 1])) << 32; }
    g_stats[1].fetch_add(1, std::memory_order_relaxed);
  });
  Slot& o = w.out[p][me->lane];
  for (int i = 0; i < 2; i++) { d[2 * i] = emu::u2f(uint32_t(o.q[i])); d[2 * i + 1] = emu::u2f(uint32_t(o.q[i] >> 32)); }
}
// Dynamic shared memory. bytes==0 gives the raw buffer; otherwise carve a sub-array and, under
// ASan, leave a poisoned gap after it so that overruns between sub-arrays are seen too.
void* emu_smem(uint64_t bytes, uint64_t align, int restart) {
  size_t &off = self->smoff, &dev = self->smdev;  // every thread carves the same sequence
  Engine* e = eng;
  if (restart) { off = dev = 0; return e->arena; }
  off = (off + align - 1) & ~(align - 1); dev = (dev + align - 1) & ~(align - 1);
  unsigned char* p = e->arena + off; off += bytes; dev += bytes;
  if (dev > e->declared) emu_fail("shared memory carve needs %zu bytes, the launch gave %zu", dev, e->declared);
#if EMU_ASAN
  __asan_unpoison_memory_region(p, bytes); off = (off + 15) & ~size_t(7); 
  __asan_poison_memory_region(p + ((bytes + 7) & ~7ull), 64); off += 64;
#endif
  return p;
}
void emu_cp_issue(void* dst, const void* src, int n, int nread) {
  Fib* me = self;
  if ((uintptr_t)dst % n || (nread && (uintptr_t)src % n)) emu_fail("cp.async: address not aligned to %d bytes", n);
  if (me->ncp == MAXCP) emu_fail("more than %d cp.async in flight in one thread", MAXCP);
  me->cps[me->ncp++] = {dst, src, n, nread, me->group}; g_stats[6].fetch_add(nread, std::memory_order_relaxed);
}
void emu_cp_commit() { self->group++; }
int emu_cp_pop(int keep, void** dst, const void** src, int* n, int* nread) {
  Fib* me = self;
  if (!me->ncp || me->cps[0].group >= me->group - keep) return 0;
  Cp c = me->cps[0]; *dst = c.dst; *src = c.src; *n = c.n; *nread = c.nread;
  me->ncp--; for (int i = 0; i < me->ncp; i++) me->cps[i] = me->cps[i + 1];
  return 1;
}
void emu_count_ld(const void*, int n, int) { g_stats[4].fetch_add(n, std::memory_order_relaxed); }
void emu_count_ldsm(const void* const* rows) {  // 8 rows of 16 bytes: conflict free when they cover all 32 banks
  int cnt[8] = {0}, mx = 0;
  for (int i = 0; i < 8; i++) { int b = int((uintptr_t)rows[i] >> 4 & 7); if (++cnt[b] > mx) mx = cnt[b]; }
  g_stats[2].fetch_add(1, std::memory_order_relaxed); g_stats[3].fetch_add(mx - 1, std::memory_order_relaxed);
}
int emu_launch(const EmuConfig* c, void (*tramp)(void*), void* arg, char* err, uint64_t errn, uint64_t* stats) {
  uint64_t nb = uint64_t(c->grid[0]) * c->grid[1] * c->grid[2];
  if (c->block[0] * c->block[1] * c->block[2] > 1024) { snprintf(err, errn, "more than 1024 threads a block"); return 1; }
  if (c->smem > 232448) { snprintf(err, errn, "more than 227 KiB of shared memory a block"); return 1; }
  if (nb == 0) { snprintf(err, errn, "empty grid (CuPy would launch one block)"); return 1; }
  for (auto& s : g_stats) s = 0;
  std::atomic<uint64_t> next{0}; std::atomic<bool> bad{false}; std::mutex mu;
  auto work = [&] {
    Engine* e = new (grab(sizeof(Engine))) Engine; eng = e; e->tramp = tramp; e->arg = arg; setup(e, c);
    for (;;) {
      uint64_t b = next++; if (b >= nb || bad) break;
      if (c->order == 1) b = nb - 1 - b;
      e->rng = (c->seed + 1) * 0x9e3779b97f4a7c15ull ^ (b + 1) * 0xbf58476d1ce4e5b9ull; if (!e->rng) e->rng = 1;
      run_block(e, b);
      if (e->failed) { std::lock_guard<std::mutex> l(mu); if (!bad) snprintf(err, errn, "%s", e->err); bad = true; break; }
    }
    teardown(e); eng = nullptr; munmap(e, sizeof(Engine));
  };
  int nw = (EMU_ASAN || EMU_TSAN) ? 1 : c->workers;
  std::vector<std::thread> th; for (int i = 1; i < nw; i++) th.emplace_back(work);
  work(); for (auto& t : th) t.join();
#if EMU_TSAN
  __tsan_acquire(&g_end);
#endif
  if (stats) for (int i = 0; i < 8; i++) stats[i] = g_stats[i];
  return bad ? 1 : 0;
}
}
