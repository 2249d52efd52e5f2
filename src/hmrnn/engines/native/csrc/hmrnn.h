/* The C interface of the native engine. Pointers to float or double, as `precision` says; to rows that lie one after the
 * other. What a layer does not have is null. Nothing here knows torch or Python.
 *
 *   T  time steps      B  batch rows      L  layers      H_l  units of layer l      S  rows of a table of inputs
 *
 * native/library.py declares the same structs. A change to any of them changes HMRNN_ABI.
 */
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define HMRNN_API __declspec(dllexport)
#else
#define HMRNN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HMRNN_ABI 3

enum { HMRNN_FLOAT32 = 0, HMRNN_FLOAT64 = 1, HMRNN_BFLOAT16 = 2 }; /* the last: operands of products; the rest is float32 */

/* The parameters of a layer, in the order of LayerWeights in equations.py; or their gradients. */
typedef struct {
  void *W, *U, *V, *b, *W_z, *U_z, *V_z, *b_z, *gain, *gain_c, *bias_c;
} HmrnnWeights;

/* A forward pass: what it is given. */
typedef struct {
  int32_t precision, threads, hold, training;
  int64_t steps, rows, layers, input_size;
  double slope;
  const int64_t* hidden;       /* (L) */
  const HmrnnWeights* weights; /* (L) */
  const void* x;               /* (T, B, input_size); or null, and then: */
  const int64_t* symbols;      /*   (T, B) which row of the table stands there */
  const void *table, *table_z; /*   (S, 4 H_0), (S): W x and W_z x of each */
  int64_t table_size;          /*   S */
  const void* const* h;        /* L times (B, H_l) */
  const void* const* c;
  const void* z;               /* (B, L-1) */
  const int64_t* lengths;      /* (B), or null: all are T */
  const void* given;           /* (T, B, L-1), or null */
  const float* uniforms;       /* (T, B, L-1), or null */
  const void* const* masks;    /* L-1 times (B, H_l), or null: W of the layer above multiplies h * mask */
} HmrnnCall;

/* What it gives back: memory of the caller. Of `values` and `tangents` the first `counts` rows are used. */
typedef struct {
  void* const* values;    /* L times (B (T+1), H_l): h of each event */
  void* const* tangents;  /* L times the same: o*tanh(c) - h; null in the first layer, and if not training */
  int64_t* const* index;  /* L times (T, B): the current event */
  void* const* c_last;    /* L times (B, H_l) */
  void* z;                /* (T, B, L-1) */
  void* z_last;           /* (B, L-1) */
  int64_t* counts;        /* (L) events, the initial states included */
  double seconds[2];      /* in all, and in matrix products (the thread that had most) */
} HmrnnForward;

/* Gradients by what the forward pass gave back, and by what it was given. Null among the first: zero. */
typedef struct {
  const void* const* values;   /* L times (counts, H_l) */
  const void* const* repeats;  /* L times (T, B) */
  const void* z;               /* (T, B, L-1) */
  const void* const* c_last;   /* L times (B, H_l) */
  const void* z_last;          /* (B, L-1) */
  void* d_x;                   /* (T, B, input_size), or null: not wanted */
  void *d_table, *d_table_z;   /* (S, 4 H_0), (S) */
  void* const* d_h;
  void* const* d_c;
  void* d_z;
  const HmrnnWeights* d_weights; /* (L); with a table, W and W_z of the first layer are null */
  double seconds[2];
} HmrnnBackward;

/* Returns null, or what went wrong. `tables` is what the backward pass needs; null unless training. */
HMRNN_API const char* hmrnn_forward(const HmrnnCall* call, HmrnnForward* out, void** tables);
HMRNN_API const char* hmrnn_backward(void* tables, HmrnnBackward* gradients);
HMRNN_API void hmrnn_free(void* tables);

/* c (rows, columns) = a . b with operands in bfloat16. a is (rows, depth), and b (depth, columns), or (columns, depth) if
 * `transposed`. With `sums`, a is (depth, rows). */
typedef struct {
  const float *a, *b;
  float* c;
  int64_t rows, columns, depth;
  int32_t transposed, sums, threads;
} HmrnnProduct;

HMRNN_API const char* hmrnn_product(const HmrnnProduct* product);

/* The gradient of a sequence in which one vector stands at many steps, values[index] + repeats * tangents[index] with repeats
 * of zero: by the values, and by the repeats. */
typedef struct {
  int32_t precision, threads;
  int64_t steps, values, width;
  const void* grad;      /* (steps, width) */
  const int64_t* index;  /* (steps), below `values` */
  const void* tangents;  /* (values, width) */
  void* d_values;        /* (values, width) */
  void* d_repeats;       /* (steps) */
} HmrnnExpansion;

HMRNN_API const char* hmrnn_expansion_backward(const HmrnnExpansion* expansion);

/* Single steps without a gradient, with weights that stay as they are: bfloat16 copies them, else they are read where they
 * lie. The output module is there if `output_size` is not 0 (float32 only). */
typedef struct {
  int32_t precision, hold;
  int64_t layers, input_size;
  const int64_t* hidden;
  const HmrnnWeights* weights;
  const void *table, *table_z; /* (S, 4 H_0), (S), or null: then steps give x */
  int64_t output_size, symbols;
  const float* const* gates;      /* L times (L, H_l) */
  const float* const* embeddings; /* L times (output_size, H_l) */
  const float *head, *head_bias;  /* (symbols, output_size), (symbols) */
} HmrnnStream;

/* A step of some batch rows. What a layer that COPYs in every row would get is not written: see `operations`. */
typedef struct {
  int64_t rows;
  int32_t threads;
  double slope;
  const void* x;           /* (B, input_size), or null */
  const int64_t* symbols;  /* (B), or null */
  const void* const* h;    /* L times (B, H_l) */
  const void* const* c;
  const void* z;           /* (B, L-1) */
  void* const* new_h;
  void* const* new_c;
  void *new_z, *new_z_too; /* (B, L-1), twice the same */
  int8_t* operations;      /* (B, L) as in sequence.Operation */
  const void* given;
  const float* uniforms;
} HmrnnStep;

HMRNN_API const char* hmrnn_stream_new(const HmrnnStream* what, void** stream);
HMRNN_API const char* hmrnn_stream_step(void* stream, const HmrnnStep* step);
HMRNN_API void hmrnn_stream_free(void* stream);

/* The same with a state inside the stream, one batch row, a table and an output module: set it, and go on symbol by symbol.
 * `z` is (L-1) boundaries. */
HMRNN_API const char* hmrnn_stream_set(void* stream, const void* const* h, const void* const* c, const void* z);
HMRNN_API const char* hmrnn_stream_get(void* stream, void* const* h, void* const* c, void* z);
HMRNN_API const char* hmrnn_stream_next(void* stream, int64_t symbol, double slope, int threads, const float* uniforms,
                                        float* logits, float* z);

HMRNN_API int hmrnn_abi(void);

/* Kernels for bfloat16: widen, dot, amx. The one in use; whether this processor has another; which to use (for tests). */
HMRNN_API const char* hmrnn_bfloat16_kernel(void);
HMRNN_API int hmrnn_bfloat16_use(const char* kernel);

#ifdef __cplusplus
}
#endif
