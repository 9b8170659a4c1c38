// Threads that share a job.  A job is a sequence of phases, each a number of parts.  Every thread walks through the same
// phases and takes parts while there are any; a phase is over when its parts are done, not when all threads have come
// by.  So a thread that the system has taken off its core holds nobody up unless it sits on a part: on cores shared
// with an event loop that is worth more than anything a fixed split saves.  Waiting threads spin, then yield; between
// jobs they sleep.  One job at a time.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>
#include "intrinsics.hpp"

namespace ms {

class Pool {
public:
    struct Walk { Pool &pool; uint32_t phase; };            // one thread's place in the job
    const int num_threads;

    explicit Pool(int n) : num_threads(n) {
        try {
            for (int t = 1; t < n; t++) threads.emplace_back([this, t] { serve(t); });
        } catch (...) {                                     // no room for another: those that run would outlive the pool
            end();
            throw;
        }
    }
    ~Pool() { end(); }
    Pool(const Pool &) = delete;

    // job(walk, thread) runs on every thread that comes in time, on the caller's certainly.
    template <class F> void run(F job) {
        call = [](void *f, Walk &w, int thread) { (*(F *)f)(w, thread); }, argument = &job;
        Walk w{*this, (uint32_t)(head.load() >> 32)};
        base.store(w.phase);
        open.store(true);
        epoch.fetch_add(1), epoch.notify_all();
        job(w, 0);
        open.store(false);
        wait([&] { return active.load() == 0; });
    }

    // A phase: f(part) once for each part, then on to the next when all are done.
    template <class F> static void parts(Walk &w, int count, F f) {
        if (count <= 0) return;
        Pool &p = w.pool;
        uint32_t k = w.phase++;
        for (;;) {
            uint64_t h = p.head.load(std::memory_order_acquire);
            if ((uint32_t)(h >> 32) != k) return;
            int i = (int)(uint32_t)h;
            if (i >= count) return wait([&] { return (uint32_t)(p.head.load(std::memory_order_acquire) >> 32) != k; });
            if (!p.head.compare_exchange_weak(h, h + 1, std::memory_order_acq_rel)) continue;
            f(i);
            if (p.done.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)count) {
                p.done.store(0, std::memory_order_relaxed);
                p.head.store((uint64_t)(k + 1) << 32, std::memory_order_release);
            }
        }
    }

    // A phase of as many parts as there are rows, or of a few rows each.
    template <class F> static void rows(Walk &w, int count, F f) {
        int most = w.pool.num_threads == 1 ? 1 : 4 * w.pool.num_threads, num_parts = count < most ? count : most;
        parts(w, num_parts, [&](int i) {
            for (int r = (int)((long)count * i / num_parts); r < (int)((long)count * (i + 1) / num_parts); r++) f(r);
        });
    }

private:
    alignas(64) std::atomic<uint64_t> head{0};              // phase << 32 | next part
    alignas(64) std::atomic<uint32_t> done{0};
    alignas(64) std::atomic<uint32_t> epoch{0};
    std::atomic<uint32_t> base{0};
    std::atomic<int> active{0};
    std::atomic<bool> open{false}, quit{false};
    void (*call)(void *, Walk &, int) = nullptr;
    void *argument = nullptr;
    std::vector<std::thread> threads;

    void end() {
        quit.store(true);
        epoch.fetch_add(1), epoch.notify_all();
        for (auto &t : threads) t.join();
    }
    void serve(int thread) {
        uint32_t seen = 0;
        for (;;) {
            for (int i = 0; i < 2000 && epoch.load() == seen; i++) _mm_pause();
            epoch.wait(seen);
            seen = epoch.load();
            if (quit.load()) return;
            active.fetch_add(1);
            if (open.load()) { Walk w{*this, base.load()}; call(argument, w, thread); }     // else: too late for this job
            active.fetch_sub(1);
        }
    }
    template <class C> static void wait(C over) {
        for (int i = 0; !over(); i++)
            if (i < 2000) _mm_pause();
            else std::this_thread::yield();
    }
};

}  // namespace ms
