// One step of a Llama-like network in one call, and each of its operators by itself.
#include "attention.hpp"
#include "draw.hpp"
#include "pool.hpp"
#include "shortlist.hpp"
#include "stream.hpp"
#include <ctime>
#include <exception>

using namespace ms;

namespace {

typedef Pool::Walk Walk;

struct Job {                                        // a step that is computed when those before it are
    const Model *model;
    Batch batch;
    Draw draw;                                      // of no rows: none
    float *logits;                                  // null: nobody wants them after the draw
    const int32_t *before;                          // ids that the step before draws, and which of them are taken
    const Take *takes;
    int32_t num_takes;
    double *moments;                                // seconds: begin, end of the network, end of the draw; at last 0: no memory
};

double seconds() {                                  // of Python's time.monotonic()
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct View { Walk &walk; int thread; };

Heads heads_of(const KV &kv, int num_heads) {
    return {num_heads, kv.num_kv_heads, kv.head_dim, kv.padded_dim, num_heads / kv.num_kv_heads};
}

class Engine {
public:
    Pool pool;
    Forms shared;
    Shortlister shortlister;
    explicit Engine(int threads)
        : pool(threads), shortlister(threads), scratch(threads), rows(threads), own(threads), drawers(threads), crowded_until(threads),
          stream([](void *engine, Job &job) { ((Engine *)engine)->run(job, true); }, this) {}
    Stream<Job> &steps() { return stream; }

    // --- phases: called by all threads of a job

    float *row_buffer(View v, int width) {          // of this thread, with room for the rest of a group behind `width`
        return rows[v.thread].get<float>(rounded_up(width, GROUP) + GROUP);
    }

    // y = f(row) W^T for `count` rows; f(row, to) writes the inputs of a row.  A single row is made by every thread for
    // itself, which takes less time than waiting for the one that makes it for all.
    template <class F> void linear(View v, const Linear &l, int count, Out out, F f) {
        if (count <= 0) return;
        Activations a = count == 1 ? own[v.thread].activations(l, 1) : shared.activations(l, count);
        auto make = [&](int r) {
            float *x = row_buffer(v, l.inputs);
            f(r, x);
            std::fill(x + l.inputs, x + a.width, 0.f);
            store_activation_row(x, a, r);
        };
        if (count > 1) Pool::rows(v.walk, count, make);
        bool made = count > 1;
        // Three quarters in large parts, the rest in small ones: few to hand out, and nobody waits long for the last.
        int all = panels_of(l), threads = pool.num_threads;
        auto bound = [&](int i) { return (int)((long)all * (i <= threads ? 3 * i : 2 * threads + i) / (4 * threads)); };
        Pool::parts(v.walk, 2 * threads, [&](int i) {
            if (!made) make(0), made = true;
            linear_part(l, a, count, out, bound(i), bound(i + 1));
        });
    }

    static auto copied(const float *x, int width) {
        return [=](int r, float *to) { memcpy(to, x + (size_t)r * width, 4 * (size_t)width); };
    }
    static auto normed(const float *x, const int32_t *chosen, int width, const float *weight, float eps) {
        return [=](int r, float *to) { rms_norm_row(x + (size_t)(chosen ? chosen[r] : r) * width, weight, width, eps, to); };
    }
    static auto gated(const float *gate_up, int width) {
        return [=](int r, float *to) {
            const float *x = gate_up + (size_t)r * 2 * width;
            silu_mul_row(x, x + width, width, to);
        };
    }

    static void head_norms(float *row, const Heads &h, const float *query, const float *key, float eps) {
        for (int i = 0; i < h.num_heads + h.num_kv_heads; i++) {
            float *x = row + (size_t)i * h.dim;
            rms_norm_row(x, i < h.num_heads ? query : key, h.dim, eps, x);
        }
    }

    void rope_and_write(View v, float *qkv, const Heads &h, const KV &kv, int layer, const Batch &b, const Layer *norms, float eps) {
        size_t width = (size_t)(h.num_heads + 2 * h.num_kv_heads) * h.dim;
        Pool::rows(v.walk, b.num_tokens, [&](int t) {
            float *row = qkv + t * width;
            if (norms) head_norms(row, h, norms->query_norm, norms->key_norm, eps);
            int half = h.dim / 2;
            const float *cos = b.cos + (size_t)b.positions[t] * half, *sin = b.sin + (size_t)b.positions[t] * half;
            for (int i = 0; i < h.num_heads + h.num_kv_heads; i++) rotate_head(row + (size_t)i * h.dim, half, cos, sin);
            if (b.slots[t] < 0) return;
            int block = b.slots[t] / kv.block_size, at = b.slots[t] % kv.block_size;
            for (int i = 0; i < h.num_kv_heads; i++) {
                const float *key = row + (size_t)(h.num_heads + i) * h.dim, *value = key + (size_t)h.num_kv_heads * h.dim;
                size_t slot = slot_offset(kv, layer, block, i, at);
                write_head(kv, kv.keys, kv.key_scales, slot, key), write_head(kv, kv.values, kv.value_scales, slot, value);
            }
        });
    }

    // --- attention: the same units and spans for every layer of a step

    void plan(const Batch &b, const Heads &h) {
        units.clear(), spans.clear(), dummies.clear();
        int longest = 1, total = 0, most = std::max(1, UNIT_ROWS / h.group) * h.group;
        if (h.group > UNIT_ROWS) most = UNIT_ROWS;
        for (int row = 0; row < b.num_rows; row++) {
            int from = b.cu_seqlens[row], count = b.cu_seqlens[row + 1] - from;
            if (b.context_lens[row] == 0) {
                for (int t = 0; t < count; t++) dummies.push_back(from + t);
                continue;
            }
            int length = (b.context_lens[row] + SPAN - 1) / SPAN, before = (int)units.size();
            for (int head = 0; head < h.num_kv_heads; head++)
                for (int first = 0; first < count * h.group; first += most)
                    units.push_back({row, head, first, std::min(most, count * h.group - first)});
            longest = std::max(longest, length), total += length * ((int)units.size() - before);
        }
        // Where one unit is more than a quarter of a thread's share, spans are handed out, not units.
        apart = longest > 1 && pool.num_threads > 1 && longest * 4 * pool.num_threads > total;
        if (!apart) return;
        for (int u = 0; u < (int)units.size(); u++) {
            int last = b.positions[b.cu_seqlens[units[u].row] + (units[u].first + units[u].count - 1) / h.group] / SPAN;
            begins.resize(u + 1), begins[u] = (int)spans.size();
            for (int i = 0; i <= last; i++) spans.push_back({u, i});
        }
        partials.get<float>(spans.size() * Partial::floats(h.padded));
    }

    void attend(View v, const Attention &a) {
        Scratch &own = scratch[v.thread];
        own.reserve(a.heads.padded);
        size_t size = Partial::floats(a.heads.padded);
        Pool::rows(v.walk, (int)dummies.size(), [&](int i) {
            memset(a.out + dummies[i] * a.out_stride, 0, 4 * (size_t)a.heads.num_heads * a.heads.dim);
        });
        if (!apart) {
            Pool::parts(v.walk, (int)units.size(), [&](int i) {
                const Unit &u = units[i];
                int from = a.first_span(u), last = a.last_span(u);
                a.span(u, from, own, Partial(own.joined));
                for (int s = from + 1; s <= last; s++) {
                    a.span(u, s, own, Partial(own.mine));
                    a.fold(u, Partial(own.joined), Partial(own.mine));
                }
                a.finish(u, Partial(own.joined));
            });
            return;
        }
        float *all = partials.get<float>(0);
        Pool::parts(v.walk, (int)spans.size(), [&](int i) {
            const Unit &u = units[spans[i].unit];
            if (spans[i].index >= a.first_span(u)) a.span(u, spans[i].index, own, Partial(all + i * size));
        });
        Pool::parts(v.walk, (int)units.size(), [&](int i) {
            const Unit &u = units[i];
            int from = a.first_span(u), last = a.last_span(u);
            Partial joined(all + (begins[i] + from) * size);
            for (int s = from + 1; s <= last; s++) a.fold(u, joined, Partial(all + (begins[i] + s) * size));
            a.finish(u, joined);
        });
    }

    // The best token of each row, see shortlist.hpp; f(row, to) writes the inputs of a row.
    template <class F> void choose(View v, const Model &m, float *logits, F f) {
        Shortlister &s = shortlister;
        Pool::rows(v.walk, s.num_rows(), [&](int r) { s.prepare(v.thread, r, m, f); });
        Pool::parts(v.walk, s.num_parts(), [&](int i) { s.estimate(v.thread, i, m, logits); });
        Pool::rows(v.walk, s.num_rows(), [&](int r) { s.decide_first(r, m, logits); });
        Pool::parts(v.walk, s.num_parts(), [&](int i) { s.list(i, m, logits); });
        Pool::parts(v.walk, s.num_parts(), [&](int i) { s.decide_listed(v.thread, i, m, logits); });
    }

    // logits null: nobody wants them.  best: room for the best token of each row that samples, if they are all that is
    // wanted of the logits; true if that is where they are, and the logits nowhere.
    bool step(const Model &m, const Batch &b, float *logits, bool gives_way, int32_t *best) {
        const KV &kv = m.kv;
        Heads h = heads_of(kv, m.num_heads);
        int n = b.num_tokens, hidden = m.hidden, q_width = h.num_heads * h.dim, qkv_width = (h.num_heads + 2 * h.num_kv_heads) * h.dim;
        float *x = hidden_buffer.get<float>((size_t)n * hidden), *qkv = qkv_buffer.get<float>((size_t)n * qkv_width);
        float *att = attention_buffer.get<float>((size_t)n * q_width), *ff = ffn_buffer.get<float>((size_t)n * 2 * m.ffn);
        for (int i = 0; i < m.num_layers; i++)      // the buffer is as large as any layer wants before pointers are taken
            for (const Linear *l : {&m.layers[i].qkv, &m.layers[i].output, &m.layers[i].gate_up, &m.layers[i].down})
                shared.activations(*l, n);
        shared.activations(m.head, b.num_logits);
        plan(b, h);
        bool chosen = best && shortlister.begin(m, b.num_logits);
        pool.run([&](Walk &walk, int thread) {
            View v{walk, thread};
            Pool::rows(v.walk, n, [&](int t) { embed(m.embedding, b.ids[t], x + (size_t)t * hidden); });
            for (int i = 0; i < m.num_layers; i++) {
                const Layer &l = m.layers[i];
                if (gives_way && i < 8) give_way(thread);           // later nobody waits any more
                linear(v, l.qkv, n, {qkv, (size_t)qkv_width, false}, normed(x, nullptr, hidden, l.input_norm, m.eps));
                rope_and_write(v, qkv, h, kv, i, b, l.query_norm ? &l : nullptr, m.eps);
                attend(v, {qkv, att, (size_t)qkv_width, (size_t)q_width, b, kv, h, i, l.window});
                linear(v, l.output, n, {x, (size_t)hidden, true}, copied(att, q_width));
                linear(v, l.gate_up, n, {ff, (size_t)2 * m.ffn, false}, normed(x, nullptr, hidden, l.ffn_norm, m.eps));
                linear(v, l.down, n, {x, (size_t)hidden, true}, gated(ff, m.ffn));
            }
            auto last = normed(x, b.logits_rows, hidden, m.norm, m.eps);
            if (chosen) choose(v, m, logits, last);
            bool whole = logits && (!chosen || shortlister.in_vain());
            if (whole) linear(v, m.head, b.num_logits, {logits, (size_t)m.vocab, false}, last);
        });
        return chosen && shortlister.end(best);
    }

    // Threads that compute step after step never sleep, so who posts the last result and plans the next step would wait
    // for a time slice.  A yield that took long went to a stranger, who would get another slice at the next one.
    void give_way(int thread) {
        double now = seconds();
        if (now < crowded_until[thread]) return;
        std::this_thread::yield();
        if (seconds() - now > 1e-3) crowded_until[thread] = now + 1;
    }

    void draw(const Draw &d) {
        for (int i = 0; i < d.num_bans; i++) {
            float &x = d.logits[(size_t)d.banned_rows[i] * d.vocab + d.banned_ids[i]];
            if (x == x) x = -std::numeric_limits<float>::infinity();            // a NaN stays, so that it is noticed
        }
        if (d.num_rows == 1) return drawers[0].draw(d, 0);      // sooner than another thread wakes up
        pool.run([&](Walk &walk, int thread) {
            Pool::parts(walk, d.num_rows, [&](int row) { drawers[thread].draw(d, row); });
        });
    }

    void run(Job &job, bool gives_way) {
        job.moments[0] = seconds(), job.moments[2] = 0;
        try {
            compute(job, gives_way);
            job.moments[2] = seconds();
        } catch (const std::bad_alloc &) {          // before any thread has begun: nothing has happened
        }
    }
    void compute(Job &job, bool gives_way) {
        for (int i = 0; i < job.num_takes; i++) job.batch.ids[job.takes[i].token] = job.before[job.takes[i].row];
        float *logits = job.logits ? job.logits : logits_buffer.get<float>((size_t)job.batch.num_logits * job.model->vocab);
        Draw &d = job.draw;
        bool greedy = !job.logits && !d.num_bans && std::all_of(d.temperature, d.temperature + d.num_rows, [](double t) { return t == 0; });
        bool drawn = step(*job.model, job.batch, logits, gives_way, greedy ? d.ids : nullptr);
        job.moments[1] = seconds();
        d.logits = logits;
        if (drawn) std::fill(d.states, d.states + d.num_rows, (int32_t)DRAWN);
        else if (d.num_rows) draw(d);
    }

    static void embed(const Table &t, int id, float *to) {
        read_row(t.source, (const char *)t.rows + id * t.row_bytes, t.width, to);
    }

    // Sums over all tokens of the squares of what the head would read of them, [hidden], behind the last step.
    void energies(const Model &m, const Batch &b, double *to) {
        std::vector<float> row(rounded_up(m.hidden, LANES));
        const float *x = hidden_buffer.get<float>(0);
        std::fill(to, to + m.hidden, 0);
        for (int t = 0; t < b.num_tokens; t++) {
            rms_norm_row(x + (size_t)t * m.hidden, m.norm, m.hidden, m.eps, row.data());
            for (int i = 0; i < m.hidden; i++) to[i] += (double)row[i] * row[i];
        }
    }

private:
    struct Span { int unit, index; };
    Buffer hidden_buffer, qkv_buffer, attention_buffer, ffn_buffer, partials, logits_buffer;
    std::vector<Scratch> scratch;
    std::vector<Buffer> rows;
    std::vector<Forms> own;
    std::vector<Drawer> drawers;
    std::vector<Unit> units;
    std::vector<Span> spans;
    std::vector<int> begins, dummies;
    std::vector<double> crowded_until;              // seconds
    bool apart = false;
    Stream<Job> stream;                             // last: it uses what stands above
};

}  // namespace

// What Python calls.  One caller at a time per engine; every function but ms_begin returns when its work is done, and
// only ms_begin and ms_wait may be called while a step is under way.
extern "C" {

int ms_lanes() { return LANES; }
// Null where the system has no room for so many threads.
Engine *ms_open(int threads) {
    try { return new Engine(threads); } catch (const std::exception &) { return nullptr; }
}
void ms_close(Engine *e) { delete e; }
int64_t ms_segment_bytes(int format, int outputs, int inputs) {
    return (int64_t)panel_bytes(format, inputs) * ((outputs + PANEL - 1) / PANEL);
}

// order: source row of each output, or null.
void ms_pack(Engine *e, const Segment *s, int source, const void *rows, int64_t row_bytes, const int32_t *order) {
    e->pool.run([&](Walk &walk, int thread) {
        View v{walk, thread};
        // Panels, not rows: two threads never write the same line.
        Pool::rows(v.walk, panels_of(*s), [&](int p) {
            for (int n = p * PANEL; n < std::min(s->outputs, (p + 1) * PANEL); n++)
                pack_row(*s, n, source, (const char *)rows + (order ? order[n] : n) * row_bytes, e->row_buffer(v, s->inputs));
        });
    });
}

// Computes the step and leaves out the head; see Engine::energies.  False where there is no memory for it.
bool ms_energies(Engine *e, const Model *m, const Batch *b, double *to) {
    try {
        e->step(*m, *b, nullptr, false, nullptr);
        e->energies(*m, *b, to);
        return true;
    } catch (const std::bad_alloc &) {
        return false;
    }
}

// Packs the coarse head `s` of a head of one segment.  measures: [3][outputs], see pack_coarse.
void ms_pack_coarse(Engine *e, const Shortlist *s, const Segment *head, float *measures) {
    e->pool.run([&](Walk &walk, int thread) {
        Pool::rows(walk, panels_of(*head), [&](int p) {
            int room = rounded_up(head->inputs, GROUP) + GROUP;
            float *w = e->row_buffer({walk, thread}, 2 * room);
            for (int n = p * PANEL; n < std::min(head->outputs, (p + 1) * PANEL); n++)
                pack_coarse(*s, *head, n, w, w + room, measures);
        });
    });
}

// How it went so far: steps decided, steps in vain, panels computed in the former.
void ms_shortlisted(Engine *e, int64_t *to) {
    to[0] = e->shortlister.decided, to[1] = e->shortlister.given_up, to[2] = e->shortlister.computed;
}

void ms_embed(Engine *e, const Table *t, const int32_t *ids, int count, float *out) {
    e->pool.run([&](Walk &walk, int) {
        Pool::rows(walk, count, [&](int i) { Engine::embed(*t, ids[i], out + (size_t)i * t->width); });
    });
}

void ms_rms_norm(Engine *e, const float *x, const float *weight, int count, int width, float eps, float *out) {
    e->pool.run([&](Walk &walk, int) {
        Pool::rows(walk, count, [&](int i) { rms_norm_row(x + (size_t)i * width, weight, width, eps, out + (size_t)i * width); });
    });
}

void ms_linear(Engine *e, const Linear *l, const float *x, int count, float *out) {
    e->shared.activations(*l, count);
    e->pool.run([&](Walk &walk, int thread) {
        e->linear({walk, thread}, *l, count, {out, (size_t)l->outputs, false}, Engine::copied(x, l->inputs));
    });
}

void ms_rope_and_write(Engine *e, float *qkv, int num_heads, const KV *kv, int layer, const Batch *b) {
    Heads h = heads_of(*kv, num_heads);
    e->pool.run([&](Walk &walk, int thread) { e->rope_and_write({walk, thread}, qkv, h, *kv, layer, *b, nullptr, 0); });
}

void ms_attention(Engine *e, const float *q, int num_heads, const KV *kv, int layer, int window, const Batch *b, float *out) {
    Heads h = heads_of(*kv, num_heads);
    size_t width = (size_t)num_heads * h.dim;
    e->plan(*b, h);
    e->pool.run([&](Walk &walk, int thread) { e->attend({walk, thread}, {q, out, width, width, *b, *kv, h, layer, window}); });
}

void ms_norm_heads(Engine *e, float *qkv, int count, int num_heads, int num_kv_heads, int dim, const float *query,
                   const float *key, float eps) {
    Heads h = {num_heads, num_kv_heads, dim, dim, 1};
    size_t width = (size_t)(num_heads + 2 * num_kv_heads) * dim;
    e->pool.run([&](Walk &walk, int) {
        Pool::rows(walk, count, [&](int t) { Engine::head_norms(qkv + t * width, h, query, key, eps); });
    });
}

void ms_silu_mul(Engine *e, const float *gate_up, int count, int width, float *out) {
    e->pool.run([&](Walk &walk, int) {
        Pool::rows(walk, count, [&](int t) {
            const float *x = gate_up + (size_t)t * 2 * width;
            silu_mul_row(x, x + width, width, out + (size_t)t * width);
        });
    });
}

void ms_draw(Engine *e, const Draw *d) { e->draw(*d); }

// A step and its draw (or null).  logits: null where only the draw wants them.  moments: three, see Job.
void ms_step(Engine *e, const Model *m, const Batch *b, float *logits, const Draw *draw, double *moments) {
    Job job = {m, *b, draw ? *draw : Draw{}, logits, nullptr, nullptr, 0, moments};
    e->run(job, false);
}

// The same, computed when those begun before are, with ids that the last of them draws.  Returns what to wait for; until
// then every array has to stay.
uint32_t ms_begin(Engine *e, const Model *m, const Batch *b, float *logits, const Draw *draw, double *moments,
                  const int32_t *before, const Take *takes, int num_takes) {
    return e->steps().add({m, *b, draw ? *draw : Draw{}, logits, before, takes, num_takes, moments});
}
void ms_wait(Engine *e, uint32_t count) { e->steps().wait(count); }
void ms_finish(Engine *e) { e->steps().finish(); }

// Reads `count` floats once on all threads: the floor that a step of one row is compared with.
float ms_read(Engine *e, const float *from, int64_t count) {
    std::atomic<float> total{0};
    e->pool.run([&](Walk &walk, int) {
        int parts = 4 * e->pool.num_threads;
        Pool::parts(walk, parts, [&](int i) {
            const float *p = from + count / parts * i, *end = p + count / parts;
            vf s[4] = {};
            for (; p + 4 * LANES <= end; p += 4 * LANES)
                for (int j = 0; j < 4; j++) s[j] += load(p + j * LANES);
            total.fetch_add(ms::sum((s[0] + s[1]) + (s[2] + s[3])));
        });
    });
    return total;
}
}
