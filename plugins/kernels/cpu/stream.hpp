// Jobs one behind the other on a thread of their own: whoever brings them need not wait for their end, and has the next
// one ready by then.  One thread adds; any may wait.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>

namespace ms {

template <class Job> class Stream {
public:
    explicit Stream(void (*run)(void *, Job &), void *with) : thread([=, this] {
        for (uint32_t k = 0;; k++) {
            added.wait(k);
            Entry &e = ring[k % SIZE];
            if (e.last) return;
            run(with, e.job);
            ended.store(k + 1), ended.notify_all();
        }
    }) {}
    ~Stream() {                                             // what was added before is done
        put({{}, true});
        thread.join();
    }
    Stream(const Stream &) = delete;

    // Returns what to wait for.  Waits itself where more jobs are under way than there is room for.
    uint32_t add(const Job &job) { return put({job, false}); }

    void finish() { wait(added.load()); }
    void wait(uint32_t count) {
        for (uint32_t now; (int32_t)((now = ended.load()) - count) < 0;) ended.wait(now);
    }

private:
    static constexpr uint32_t SIZE = 4;
    struct Entry { Job job; bool last; };
    Entry ring[SIZE] = {};
    std::atomic<uint32_t> added{0}, ended{0};
    std::thread thread;                                     // last: it uses what stands above

    uint32_t put(const Entry &entry) {
        uint32_t k = added.load();
        wait(k - SIZE + 1);
        ring[k % SIZE] = entry;
        added.store(k + 1), added.notify_one();
        return k + 1;
    }
};

}  // namespace ms
