// Memory that grows, and activation rows in it, in every form that a matrix wants, for one matrix after the other.
#pragma once
#include "linear.hpp"
#include <vector>

namespace ms {

class Buffer {                                      // aligned, grows, never shrinks
    std::vector<char> bytes;
public:
    template <class T> T *get(size_t count) {
        if (bytes.size() < count * sizeof(T) + 64) {
            std::vector<char>().swap(bytes);        // never the old and the new at once
            bytes.resize(count * sizeof(T) + 64);
        }
        return (T *)(((uintptr_t)bytes.data() + 63) & ~(uintptr_t)63);
    }
};

class Forms {
    Buffer floats, words16, words8;
public:
    Activations activations(const Linear &l, int num_rows) {
        Activations a = {};
        a.need = need_of(l), a.groups = (l.inputs + GROUP - 1) / GROUP, a.width = a.groups * GROUP;
        size_t words = (size_t)num_rows * a.width, scales = (size_t)num_rows * a.groups;
        if (a.need & FLOATS) a.floats = floats.get<float>(words);
        if (a.need & WORDS16) {
            a.words16 = words16.get<int32_t>(words / 2 + 2 * scales);
            a.scale16 = (float *)(a.words16 + words / 2), a.sum16 = a.scale16 + scales;
        }
        if (a.need & WORDS8) {
            a.words8 = words8.get<int32_t>(words / 4 + 4 * scales);
            a.halves8 = a.words8 + words / 4;
            a.scale8 = (float *)(a.halves8 + 2 * scales), a.sum8 = a.scale8 + scales;
        }
        return a;
    }
};

// The same rows from `row` on.
static inline Activations from_row(Activations a, int row) {
    size_t words = (size_t)row * a.width, scales = (size_t)row * a.groups;
    if (a.floats) a.floats += words;
    if (a.words16) a.words16 += words / 2, a.scale16 += scales, a.sum16 += scales;
    if (a.words8) a.words8 += words / 4, a.halves8 += 2 * scales, a.scale8 += scales, a.sum8 += scales;
    return a;
}

}  // namespace ms
