// What the forward pass leaves for the backward pass: for each layer a table with a row for each event.
#pragma once

#include <cstdint>
#include <vector>

#include "hmrnn.h"
#include "memory.h"

namespace hmrnn {

template <typename T>
struct Weights {
  const T *W, *U, *V, *b, *W_z, *U_z, *V_z, *b_z, *gain, *gain_c, *bias_c;

  explicit Weights(const HmrnnWeights& w)
      : W(as(w.W)), U(as(w.U)), V(as(w.V)), b(as(w.b)), W_z(as(w.W_z)), U_z(as(w.U_z)), V_z(as(w.V_z)), b_z(as(w.b_z)),
        gain(as(w.gain)), gain_c(as(w.gain_c)), bias_c(as(w.bias_c)) {}

 private:
  static const T* as(void* p) { return static_cast<const T*>(p); }
};

// An UPDATE or FLUSH of a layer in a batch row, or (t = -1) its initial state.
struct Event {
  int32_t row, t;
  int32_t before;        // this layer's event before, in this row
  int32_t above, below;  // the neighbours' events that it read; in the first layer, `below` is a row of x or of the table
  bool z, y;             // z[t-1, l] and z[t, l-1]
};

// Row e of a table of that width.
template <typename T>
inline T* row(T* table, int64_t e, int64_t width) {
  return table + e * width;
}

// The events of a layer in a group of batch rows: they are numbered from 0, the initial states first.
template <typename T>
struct Layer {
  int64_t H, H_below, H_above;  // H_above is 0 in the last layer
  Weights<T> w;
  int64_t count = 0;   // of its events
  int64_t offset = 0;  // of them in `values`, where the groups lie one behind the other
  Event* events = nullptr;
  T *h = nullptr, *c = nullptr;  // (N, H) state after each event; h in the memory of the caller
  const T* mask = nullptr;       // (rows of the group, H) of dropout, or null
  T* handed = nullptr;           // (N, H) h * mask: what W of the layer above multiplies. Without a mask, h itself.
  T* gates = nullptr;            // (N, 4H) f, i, o, g; with layer normalisation, normalised pre-activations. Later ds.
  T* rstd = nullptr;             // (N) of the gates' layer normalisation
  T* v = nullptr;                // (N, 4H_below) V h for the layer below; not in the first layer
  // What a COPY step after the event did not do; not in the first layer.
  T* not_h = nullptr;       // (N, H) o*tanh(c) - h; in the memory of the caller
  T* not_flush = nullptr;   // (N, H) i*g - c
  T* not_update = nullptr;  // (N, H) f*c + i*g - c
  // Dot products of h with the detectors that read it: this layer's, that of the layer above, that of the layer below.
  T *u_z = nullptr, *w_z = nullptr, *v_z = nullptr;  // (N)

  explicit Layer(const HmrnnWeights& weights) : H(0), H_below(0), H_above(0), w(weights) {}
};

// Batch rows that are computed by one thread, or by some that meet; groups do not meet.
template <typename T>
struct Group {
  int64_t begin, end;  // batch rows
  int team;            // threads
  std::vector<Layer<T>> layers;

  int64_t rows() const { return end - begin; }
};

struct AnyTables {
  virtual ~AnyTables() = default;
  virtual void backward(HmrnnBackward& gradients) = 0;
};

template <typename T>
struct Tables {
  int64_t steps, rows, layers, input_size, table_size;
  int threads;
  bool hold, training, bfloat16;
  T slope;
  const T *x, *table, *table_z;
  const int64_t* symbols;
  const T* given;
  const float* uniforms;
  std::vector<int64_t> lengths;  // (B)
  std::vector<Group<T>> groups;
  Buffer<T> s_z;                  // (T, B, L-1) the detectors' pre-activations
  Buffer<uint8_t> fires, z;       // (T, B, L-1) bound(z~) whether or not it was used; the boundaries
  std::vector<uint8_t> z_start;   // (B, L-1)
  std::vector<Buffer<T>> memory;  // of the layers' tables
  Buffer<Event> events;

  Tables(const HmrnnCall& call, const HmrnnForward& out);

  int64_t detectors() const { return layers - 1; }
  int64_t at(int64_t t, int64_t b, int64_t l) const { return (t * rows + b) * (layers - 1) + l; }
  // The row of x, or of the table, that stands there.
  int64_t input_row(int64_t t, int64_t b) const { return x ? t * rows + b : symbols[t * rows + b]; }

 private:
  void add_layer(const HmrnnCall& call, const HmrnnForward& out, int64_t l);
};

}  // namespace hmrnn
