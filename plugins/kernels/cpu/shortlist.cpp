// Everything about a shortlist but the inputs of its rows.  None of it takes long beside the matrices.
#include "shortlist.hpp"
#include <cmath>

namespace ms {

constexpr int BLOCK = 16;                           // panels: their logits stay in the first cache

// The weights of an output of FLOAT32, BFLOAT16, Q8_HALF or Q8_FLOAT16.
static void unpack_row(const Segment &s, int output, float *to) {
    const char *panel = (const char *)s.weights + panel_bytes(s.format, s.inputs) * (output / PANEL);
    int j = output % PANEL, v = j / LANES, lane = j % LANES;
    for (int k = 0; k < s.inputs; k++) {
        if (s.format == FLOAT32) { memcpy(to + k, panel + ((size_t)k * PANEL + j) * 4, 4); continue; }
        if (s.format == BFLOAT16) {
            uint16_t b;
            memcpy(&b, panel + ((size_t)(k / 2) * PANEL + j) * 4 + k % 2 * 2, 2);
            to[k] = from_bf16(b);
            continue;
        }
        const char *group = panel + k / GROUP * group_bytes(s.format), *scales = group + PANEL * GROUP;
        int i = k % GROUP, word = i / 8 * 2 + i % 2;
        int8_t q = ((const int8_t *)group)[((size_t)word * 2 + v) * VECTOR + lane * 4 + i % 8 / 2];
        float d;
        if (s.format == Q8_HALF) d = half_at((const uint8_t *)scales + 2 * j);
        else memcpy(&d, scales + 4 * (i / (GROUP / 2) * PANEL + j), 4);
        to[k] = d * q;
    }
}

void pack_coarse(const Shortlist &s, const Segment &head, int output, float *w, float *ordered, float *measures) {
    unpack_row(head, output, w);
    int before = s.few.inputs / GROUP, groups = before + (s.rest.inputs + GROUP - 1) / GROUP;
    std::fill(ordered + head.inputs, ordered + groups * GROUP, 0.f);
    for (int i = 0; i < head.inputs; i++) ordered[i] = w[s.order[i]];
    vf apart[2] = {}, exact = {}, coarse = {};
    for (int g = 0; g < groups; g++) {
        bool few = g < before;
        const Segment &to = few ? *s.few.segments : *s.rest.segments;
        const float *v = ordered + g * GROUP;
        Group32 q = quantise_weights(v, bits_of(to.format));
        char *panel = (char *)to.weights + panel_bytes(to.format, to.inputs) * (output / PANEL);
        put_group(panel + (few ? g : g - before) * group_bytes(to.format), to.format, output % PANEL, q);
        for (int i = 0; i < GROUP; i += LANES) {
            vf a = load(v + i), b = fma(to_float(load_words(q.q + i)), set1(q.d[0]), set1(q.m)), c = a - b;
            apart[!few] = fma(c, c, apart[!few]), exact = fma(a, a, exact), coarse = fma(b, b, coarse);
        }
    }
    float squares[3] = {sum(apart[0]), sum(apart[1]), std::max(sum(exact), sum(coarse))};
    for (int i = 0; i < 3; i++)                     // up by more than sums lose, and squares that are too small for float32
        measures[i * (size_t)head.outputs + output] = std::sqrt(squares[i]) * (1 + 1e-4f) + 1e-18f;
}

bool Shortlister::begin(const Model &m, int num_rows) {
    if (!m.shortlist || num_rows <= 0) return false;
    if (pause > 0) return pause--, false;
    exact = exact_forms.activations(m.head, num_rows);
    few = few_forms.activations(m.shortlist->few, num_rows), rest = rest_forms.activations(m.shortlist->rest, num_rows);
    rows = num_rows, panels = panels_of(m.head), parts = 4 * (int)buffers.size();
    reach.assign(rows, 0), first.assign(rows, {}), listed.resize((size_t)rows * panels), lengths.assign(parts, 0);
    for (size_t t = 0; t < buffers.size(); t++)
        buffers[t].get<float>(2 * padded()), rough[t].assign(rows, {}), found[t].assign(rows, {});
    // Measured: reading all of the head costs less than longer lists.
    limit = (int)std::max<int64_t>(1, (int64_t)rows * panels / (rows == 1 ? 3 : 8));
    return true;
}

bool Shortlister::end(int32_t *ids) {
    if (in_vain()) {
        given_up++, pause = next_pause, next_pause = std::min(2 * next_pause, 4096);
        return false;
    }
    decided++, computed += total(), next_pause = 1;
    for (int r = 0; r < rows; r++) {
        for (auto &of_thread : found) first[r].take(of_thread[r]);
        ids[r] = first[r].id;
    }
    return true;
}

// The norm of as many steps as there are inputs.  A group of nothing above 1e-30 is read as zeros.
static double steps(const float *scales, int groups, int r) {
    double square = 0;
    for (int g = 0; scales && g < groups; g++) {
        double step = std::max(scales[(size_t)r * groups + g], 2e-30f);     // in this order: a NaN stays
        square += step * step;
    }
    return std::sqrt(GROUP * square);
}

float Shortlister::reach_of(const Shortlist &s, int inputs, const float *ordered, int r) const {
    double square[2] = {};
    for (int i = 0; i < inputs; i++) square[i >= few.width] += (double)ordered[i] * ordered[i];
    // An integer is at most half a step from what it stands for, and a little more where rounding was rounded.
    double read = 0.51 * (steps(exact.scale16, exact.groups, r) + steps(few.scale16, few.groups, r) + steps(rest.scale8, rest.groups, r));
    // A sum of n products is off by less than n 2^-24 times the sum of their sizes.  With a group's offset apart, three
    // products a group, and their sizes add up to less than 20 |c| |x|.
    double rounding = (inputs + 60 * (few.groups + rest.groups) + 64) * 0x1p-24 * std::sqrt(square[0] + square[1]);
    double sum = std::sqrt(square[1]) + s.few_unit * std::sqrt(square[0]) + s.size_unit * (read + rounding);
    return (float)(sum * 1.0001);                   // up by more than float32 loses here and where it is multiplied
}

void Shortlister::take(int r, const Model &m, float *x) {
    const Shortlist &s = *m.shortlist;
    int inputs = m.head.inputs;
    float *ordered = x + padded();
    std::fill(x + inputs, x + padded(), 0.f), std::fill(ordered + inputs, ordered + padded(), 0.f);
    for (int i = 0; i < inputs; i++) ordered[i] = x[s.order[i]];
    store_activation_row(x, exact, r);
    store_activation_row(ordered, few, r), store_activation_row(ordered + few.width, rest, r);
    reach[r] = reach_of(s, inputs, ordered, r);
}

// The columns of panels [p, last): whole(first of LANES), then single(column).
template <class F, class G> static void columns(const Model &m, int p, int last, F whole, G single) {
    int i = p * PANEL, end = std::min(last * PANEL, m.vocab);
    for (; i + LANES <= end; i += LANES) whole(i);
    for (; i < end; i++) single(i);
}

static void note(const Model &m, const float *logits, int r, int p, int last, Choice &best) {
    const float *x = logits + (size_t)r * m.vocab;
    vf high = set1(best.logit);
    float other = best.logit;
    columns(m, p, last, [&](int i) { high = greater(load(x + i), high); }, [&](int i) { other = std::max(other, x[i]); });
    if (std::max(largest(high), other) == best.logit) return;
    for (int i = p * PANEL; i < std::min(last * PANEL, m.vocab); i++) best.take({x[i], i});
}

void Shortlister::estimate(int thread, int part, const Model &m, float *logits) {
    Out out = {logits, (size_t)m.vocab, false}, added = {logits, (size_t)m.vocab, true};
    for (int p = bound(part), end = bound(part + 1); p < end; p += BLOCK) {
        int last = std::min(end, p + BLOCK);
        linear_part(m.shortlist->few, few, rows, out, p, last), linear_part(m.shortlist->rest, rest, rows, added, p, last);
        for (int r = 0; r < rows; r++) note(m, logits, r, p, last, rough[thread][r]);
    }
}

// Whether an output of panels [p, last) may be the best.
bool Shortlister::comes_up(const Model &m, const float *logits, int r, int p, int last) const {
    const float *x = logits + (size_t)r * m.vocab, *error = m.shortlist->error;
    float by = reach[r], least = first[r].logit;
    vf high = set1(-std::numeric_limits<float>::infinity());
    bool any = false;
    columns(m, p, last, [&](int i) { high = greater(fma(load(error + i), set1(by), load(x + i)), high); },
            [&](int i) { any |= std::fma(error[i], by, x[i]) >= least; });
    return any || largest(high) >= least;
}

// The exact logits of a panel in place of the coarse ones.
void Shortlister::decide(const Model &m, float *logits, int r, int panel, Choice &best) const {
    float *x = logits + (size_t)r * m.vocab;
    linear_part(m.head, from_row(exact, r), 1, {x, (size_t)m.vocab, false}, panel, panel + 1);
    for (int i = panel * PANEL; i < std::min((panel + 1) * PANEL, m.vocab); i++) best.take({x[i], i});
}

static void fetch_panel(const Segment &s, int panel) {
    size_t bytes = panel_bytes(s.format, s.inputs);
    for (size_t b = 0; b < bytes; b += 64) __builtin_prefetch((const char *)s.weights + bytes * panel + b, 0, 0);
}

void Shortlister::decide_first(int r, const Model &m, float *logits) {
    Choice best;
    for (auto &of_thread : rough) best.take(of_thread[r]);
    decide(m, logits, r, best.id / PANEL, first[r]);
}

void Shortlister::list(int part, const Model &m, const float *logits) {
    int32_t *begin = listed.data() + (size_t)bound(part) * rows, *to = begin;
    lengths[part] = limit + 1;
    for (int r = 0; r < rows; r++) {
        if (!(reach[r] < 1e15f)) return;            // not finite, or logits might not be
        for (int p = bound(part), end = bound(part + 1); p < end; p += BLOCK) {
            int last = std::min(end, p + BLOCK);
            if (!comes_up(m, logits, r, p, last)) continue;
            for (int at = p; at < last; at++)
                if (comes_up(m, logits, r, at, at + 1)) *to++ = r * panels + at;
        }
    }
    lengths[part] = (int)(to - begin);
}

// Each part has its share in the lists of all, which may be of very different lengths.
void Shortlister::decide_listed(int thread, int part, const Model &m, float *logits) {
    if (in_vain()) return;
    int at = (int)(total() * part / parts), end = (int)(total() * (part + 1) / parts);
    for (int of = 0, before = 0; at < end; before += lengths[of++]) {
        const int32_t *item = listed.data() + (size_t)bound(of) * rows + (at - before);
        for (int last = std::min(end, before + lengths[of]); at < last; at++, item++) {
            if (at + 1 < last) fetch_panel(m.head.segments[0], item[1] % panels);
            decide(m, logits, *item / panels, *item % panels, found[thread][*item / panels]);
        }
    }
}

}  // namespace ms
