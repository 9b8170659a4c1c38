// The best token of a row without reading all of the head.
//
// A coarse head says roughly how large each logit is: the 32 inputs that tend to be largest in 8 bits, the others in 4.
// How far it may be off is known, since for the weights w of an output, c of the coarse head, and a row x (Cauchy-Schwarz,
// the norms Euclidean, `lost` what activations lose as integers and sums by rounding)
//
//   |exact - coarse| <= |w - c|_few |x|_few + |w - c|_rest |x|_rest + max(|w|, |c|) lost
//                    <= error * reach
//   error = max(|w - c|_rest, |w - c|_few / few_unit, max(|w|, |c|) / size_unit)       of an output, executors/native_shortlist.py
//   reach = |x|_rest + few_unit |x|_few + size_unit lost                               of a row, with any units
//
// The best token is where coarse + error * reach comes up to the exact logit of the coarse best.  Panels with such an
// output are computed as they would have been among all, and the best of them is the best of all, to the bit.
#pragma once
#include "forms.hpp"
#include <limits>
#include <numeric>

namespace ms {

struct Choice {
    float logit = -std::numeric_limits<float>::infinity();
    int id = 0;
    void take(Choice o) { if (o.logit > logit || (o.logit == logit && o.id < id)) *this = o; }
};

// Packs output `output` of the coarse head; its norms go to measures [3][outputs]: |w - c| of the few inputs, of the rest,
// and max(|w|, |c|).  w, ordered: room for whole groups.
void pack_coarse(const Shortlist &s, const Segment &head, int output, float *w, float *ordered, float *measures);

class Shortlister {
public:
    int64_t decided = 0, given_up = 0, computed = 0;        // steps, steps, panels of all decided steps

    explicit Shortlister(int threads) : buffers(threads), rough(threads), found(threads) {}

    // Before the threads begin: whether the tokens of this step are to be found so.
    bool begin(const Model &m, int num_rows);

    // Then in this order by all threads, which share rows or parts.  logits [rows, vocab]: afterwards of no use.
    int num_rows() const { return rows; }
    int num_parts() const { return parts; }
    template <class F> void prepare(int thread, int r, const Model &m, F f) {       // f(row, to) writes the inputs of a row
        float *x = buffers[thread].get<float>(0);
        f(r, x);
        take(r, m, x);
    }
    void estimate(int thread, int part, const Model &m, float *logits);             // all coarse logits
    void decide_first(int r, const Model &m, float *logits);                        // the exact one where the coarse one is best
    void list(int part, const Model &m, const float *logits);                       // the panels that may hold a better one
    void decide_listed(int thread, int part, const Model &m, float *logits);        // unless the lists are too long

    // Once there are lists, on any thread: whether it was in vain, and all of the head has to be read.
    bool in_vain() const { return total() > limit; }

    // Afterwards: false if it was in vain, or the tokens.  Then it is tried again after a pause, a longer one each time.
    bool end(int32_t *ids);

private:
    Forms exact_forms, few_forms, rest_forms;
    Activations exact, few, rest;
    std::vector<Buffer> buffers;                    // of a thread: a row, and the same in the order of the coarse head
    std::vector<std::vector<Choice>> rough, found;  // of a thread, for each row: by the coarse head, by the exact one
    std::vector<Choice> first;                      // of each row: what the exact head says where the coarse one is best
    std::vector<float> reach;                       // of each row
    std::vector<int32_t> listed;                    // row * panels + panel; those of a part from bound(part) * rows on
    std::vector<int> lengths;                       // of each part
    int rows = 0, panels = 0, parts = 0, limit = 0;
    int pause = 0, next_pause = 1;                  // steps

    int bound(int part) const { return (int)((int64_t)panels * part / parts); }
    int padded() const { return few.width + rest.width + GROUP; }       // floats of a row, with room for whole groups
    int64_t total() const { return std::accumulate(lengths.begin(), lengths.end(), (int64_t)0); }
    void take(int r, const Model &m, float *x);
    float reach_of(const Shortlist &s, int inputs, const float *ordered, int r) const;
    bool comes_up(const Model &m, const float *logits, int r, int p, int last) const;
    void decide(const Model &m, float *logits, int r, int panel, Choice &best) const;
};

}  // namespace ms
