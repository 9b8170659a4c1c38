// The plain structs that Python fills in (executors/native_abi.py mirrors them field by field).
// Whatever comes in has been checked there: shapes, ids, slots and tables are trusted here.
#pragma once
#include <cstdint>

// How a matrix is kept.  Grouped: 32 inputs share w = d * u + m.  HALF and FLOAT: what d and m are kept in.
enum Format : int32_t {
    FLOAT32,        // as it is
    BFLOAT16,       // exactly expanded to float32 where it is used
    Q4_HALF,        // unsigned 4 bits, d and m (GGUF Q4_0, Q4_1)
    Q4_FLOAT,       // the same with float32 d and m (GGUF Q4_K)
    Q8_HALF,        // signed 8 bits, d (GGUF Q8_0)
    Q8_FLOAT16,     // signed 8 bits, float32 d for every 16 inputs (GGUF Q6_K)
};

// How a matrix or an embedding table comes in: rows of GGML blocks, or numbers.
enum Source : int32_t { SRC_F32, SRC_F16, SRC_BF16, SRC_Q4_0, SRC_Q4_1, SRC_Q8_0, SRC_Q4_K, SRC_Q6_K };

enum KVFormat : int32_t { KV_F32, KV_F16, KV_BF16, KV_INT8 };

struct Segment {                    // some outputs of a matrix, in one format
    void *weights;                  // [panel][group or input or pair of inputs][outputs of a panel], see linear.hpp
    const float *bias;              // [outputs] or null
    int32_t format, outputs, inputs, first;     // first: column of the result where its outputs begin
};

struct Linear {                     // y = x W^T (+ bias)
    const Segment *segments;
    int32_t num_segments, outputs, inputs, int8_activations;    // the last: for the grouped segments
};

struct Table {                      // embeddings as they came
    const void *rows;
    int64_t row_bytes;
    int32_t source, width;
};

struct KV {                         // [layer][block][kv head][token][padded head_dim], keys and values apart
    void *keys, *values;
    float *key_scales, *value_scales;           // [layer][block][kv head][token], KV_INT8 only
    int32_t format, num_blocks, block_size, num_kv_heads, head_dim, padded_dim;
};

struct Batch {
    int32_t *ids;                               // [tokens]; those of `Take`s are written before the step is computed
    const int32_t *positions, *slots;           // [tokens]; slot -1: written nowhere
    const int32_t *cu_seqlens, *context_lens;   // [rows + 1], [rows]; context 0: a dummy row
    const int32_t *tables, *logits_rows;        // [rows, table_width], [num_logits]
    const float *cos, *sin;                     // [positions, head_dim / 2]
    int32_t num_tokens, num_rows, table_width, num_logits;
};

struct Layer {
    const float *input_norm, *ffn_norm, *query_norm, *key_norm;     // the last two null without them
    Linear qkv, output, gate_up, down;
    int32_t window, pad;                        // tokens a token sees, itself included; 0: all
};

struct Shortlist {                  // a coarse head, and how wrong it may be; see shortlist.hpp
    Linear few, rest;               // of the inputs that come first in the order, in 8 bits; of the others, in 4
    const int32_t *order;           // [hidden] inputs of the head
    const float *error;             // [vocab]
    float few_unit, size_unit;
};

struct Model {
    const Layer *layers;
    const float *norm;
    Table embedding;
    Linear head;
    const Shortlist *shortlist;     // or null
    KV kv;
    int32_t num_layers, hidden, num_heads, ffn, vocab;
    float eps;
};

struct Take { int32_t token, row; };            // the id of a token is what the step before drew for this row of its own

// What a row's logits hold besides numbers: nothing, so that a token was drawn; a NaN; +inf; nothing but -inf.
enum Drawn : int32_t { DRAWN = 0, HAS_NAN = 2, HAS_INFINITE = 3, HAS_NONE = 4 };

struct Draw {                       // one token for each row, see draw.hpp
    float *logits;                              // [rows, vocab]
    const double *temperature, *top_p, *min_p, *uniform;    // [rows]; temperature 0: the best token
    const int32_t *top_k;                       // [rows], 0: off.  Only temperature is read where it is 0 everywhere
    const int64_t *banned_rows, *banned_ids;    // [num_bans], tokens that cannot be drawn
    int32_t *ids, *states;                      // [rows], results
    int32_t num_rows, vocab, num_bans, bits;
};
