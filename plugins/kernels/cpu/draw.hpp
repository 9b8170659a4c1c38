// One token for each row of logits, as the standard sampler draws it: temperature, top-k, top-p, min-p, draw.
//
// The arithmetic is the sampler's: a token's weight is round(2^bits * e^((logit - best) / temperature)) as an integer,
// tokens are in order of descending logit and then ascending id, each cut keeps a prefix of that order and so is one number,
// the mass kept.  Sums of integers are exact in any order.  A place in the order is found without sorting the row: among
// bins of logits first, then among the few tokens of one bin.
#pragma once
#include "abi.hpp"
#include "vec.hpp"
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>
#include "intrinsics.hpp"

namespace ms {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

class Drawer {                                      // of one thread
public:
    void draw(const Draw &d, int row) {
        x = d.logits + (size_t)row * d.vocab, vocab = d.vocab;
        d.states[row] = survey();
        int id = 0;
        if (d.states[row] == DRAWN) {
            while (id + LANES <= vocab && largest(load(x + id)) < best) id += LANES;
            while (x[id] != best) id++;
            if (d.temperature[row] > 0) id = drawn(d, row);
        }
        d.ids[row] = id;
    }

private:
    static constexpr int BINS = 2048;
    static constexpr double ROUND = 6755399441055744.;      // 1.5 * 2^52: adding it rounds to the nearest integer
    typedef double vd __attribute__((vector_size(32)));
    typedef int64_t vl __attribute__((vector_size(32)));
    typedef float vq __attribute__((vector_size(16)));
    typedef uint16_t bins_of_lanes __attribute__((vector_size(2 * LANES)));
    struct Bin { int64_t mass, count; };
    struct Token { float logit; int id; };
    struct Reached { int bin; int64_t mass, count; };
    struct Place { int id; int64_t mass; };                 // a token, and the mass up to and including it

    const float *x;                                         // the row
    int vocab, bits;
    float best, lowest;
    double temperature, scale;                              // 2^bits
    std::vector<uint16_t> bin_of;
    std::vector<Token> few;
    Bin bins[BINS];

    // The best logit and the lowest that is possible at all, or what makes the row unusable.
    int survey() {
        vf high = set1(-INFINITE), low = set1(INFINITE);
        vi strange = {};
        int i = 0;
        for (; i + LANES <= vocab; i += LANES) {
            vf v = load(x + i);
            high = greater(v, high), low = lesser(v == -INFINITE ? set1(INFINITE) : v, low), strange |= v != v;
        }
        best = largest(high), lowest = -largest(-low);
        bool broken = false;
        for (int lane = 0; lane < LANES; lane++) broken |= strange[lane] != 0;
        for (; i < vocab; i++) {
            best = std::max(best, x[i]), broken |= x[i] != x[i];
            if (x[i] != -INFINITE) lowest = std::min(lowest, x[i]);
        }
        return broken ? HAS_NAN : best == INFINITE ? HAS_INFINITE : best == -INFINITE ? HAS_NONE : DRAWN;
    }

    static vd fma4(vd a, vd b, vd c) { return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }

    // e^y for y in [-64, 0] to about the last bit; 1 at 0.  Taylor series after taking off n ln 2 in two parts.
    static vd exp_negative(vd y) {
        constexpr double c[14] = {
            1. / 6227020800, 1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320, 1. / 5040, 1. / 720,
            1. / 120, 1. / 24, 1. / 6, 1. / 2, 1., 1.,
        };
        vd t = fma4(y, vd{} + 1.4426950408889634, vd{} + ROUND), n = t - ROUND;
        vd r = fma4(n, vd{} - 0x1.ef35793c76730p-45, fma4(n, vd{} - 0x1.62e42fefa3800p-1, y));
        vd p = vd{} + c[0];
        for (int i = 1; i < 14; i++) p = fma4(p, r, vd{} + c[i]);
        return (vd)((vl)p + ((vl)t << 52));
    }

    vl weigh(vq logits) const {
        vd y = (__builtin_convertvector(logits, vd) - (double)best) / temperature, least = vd{} - 64.;
        vd w = exp_negative(y > least ? y : least) * scale;         // below -64 it weighs nothing
        if (bits <= 50) return (vl)(w + ROUND) - (vl)(vd{} + ROUND);
        vl rounded;                                                 // too large for rounding by an addition
        for (int i = 0; i < 4; i++) rounded[i] = (int64_t)std::nearbyint(w[i]);
        return rounded;
    }
    int64_t weight(float logit) const { return weigh(vq{} + logit)[0]; }

    // The bin of each token and their numbers: of 1/32 of an exponent, or less if all fit.  The last holds the rest.
    void sort_into_bins() {
        float range = best - lowest, steps = (float)(32. / temperature);
        if (range > 0 && range * steps < BINS - 2) steps = (BINS - 2) / range;
        bin_of.resize(rounded_up(vocab, LANES));
        float tail[LANES];
        std::fill(tail, tail + LANES, best);
        for (int i = 0; i < vocab; i += LANES) {
            int count = std::min(LANES, vocab - i);
            vf v = count == LANES ? load(x + i) : load((const float *)memcpy(tail, x + i, 4 * count));
            vf b = lesser((set1(best) - v) * steps, set1(BINS - 1.f));
            bins_of_lanes bin = __builtin_convertvector(__builtin_convertvector(b, vi), bins_of_lanes);
            memcpy(&bin_of[i], &bin, sizeof bin);
        }
        std::fill(bins, bins + BINS, Bin{});
        for (int i = 0; i < vocab; i++) bins[bin_of[i]].count++;
    }

    // Masses of the bins up to `last`.  Returns that of the tokens in them which weigh at least `least`.
    int64_t fill_bins(int last, int64_t least) {
        int64_t likely = 0;
        auto add = [&](int i, int64_t w) { bins[bin_of[i]].mass += w, likely += w >= least ? w : 0; };
        if (last < BINS - 1) {
            for (int i = 0; i < vocab; i++)
                if (bin_of[i] <= last) add(i, weight(x[i]));
            return likely;
        }
        int i = 0;
        for (; i + 4 <= vocab; i += 4) {
            vq four;
            memcpy(&four, x + i, sizeof four);
            vl w = weigh(four);
            for (int lane = 0; lane < 4; lane++) add(i + lane, w[lane]);
        }
        for (; i < vocab; i++) add(i, weight(x[i]));
        return likely;
    }

    // The bin in which the cumulated counts (or masses) reach the goal, and what lies before it.
    Reached locate(int64_t goal, bool by_count) const {
        Reached r = {0, 0, 0};
        for (; r.bin < BINS - 1; r.bin++) {
            const Bin &here = bins[r.bin];
            if ((by_count ? r.count + here.count : r.mass + here.mass) >= goal) break;
            r.mass += here.mass, r.count += here.count;
        }
        return r;
    }

    // The first token at which the count or the mass, cumulated in order, reaches the goal.
    Place find(int64_t goal, bool by_count) {
        auto [at, mass, count] = locate(goal, by_count);
        few.clear();
        for (int i = 0; i < vocab; i++)
            if (bin_of[i] == at) few.push_back({x[i], i});
        std::sort(few.begin(), few.end(), [](const Token &a, const Token &b) {
            return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
        });
        Place place = {0, mass};
        for (const Token &token : few) {
            place = {token.id, place.mass + weight(token.logit)}, count++;
            if ((by_count ? count : place.mass) >= goal) break;
        }
        return place;
    }

    int drawn(const Draw &d, int row) {
        int top_k = d.top_k[row];
        double top_p = d.top_p[row], min_p = d.min_p[row];
        bits = d.bits, scale = std::ldexp(1., bits), temperature = d.temperature[row];
        bool cut = top_k > 0 && top_k < vocab;
        sort_into_bins();
        int64_t likely = fill_bins(cut ? locate(top_k, true).bin : BINS - 1, (int64_t)std::ceil(min_p * scale)), mass = 0;
        for (const Bin &bin : bins) mass += bin.mass;
        if (cut) mass = std::min(mass, find(top_k, true).mass);
        if (top_p < 1) {
            int64_t goal = (int64_t)std::ceil((double)mass * top_p);
            mass = std::min(mass, find(std::min(std::max(goal, (int64_t)1), mass), false).mass);
        }
        if (min_p > 0) mass = std::min(mass, likely);
        int64_t goal = (int64_t)((double)mass * d.uniform[row]);
        return find(std::min(goal, mass - 1) + 1, false).id;
    }
};

}  // namespace ms
