// What the forward pass leaves for the backward pass: for each layer a table with a row for each event.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace hmrnn {

// The parameters of a layer, in the order of LayerWeights in equations.py. Undefined where the layer has none.
struct Weights {
  at::Tensor W, U, V, b, W_z, U_z, V_z, b_z, gain, gain_c, bias_c;

  static Weights from(const std::vector<std::optional<at::Tensor>>& list);
  std::vector<at::Tensor> list() const { return {W, U, V, b, W_z, U_z, V_z, b_z, gain, gain_c, bias_c}; }
};

// An UPDATE or FLUSH of a layer in a batch row, or (t = -1) its initial state.
struct Event {
  int32_t row, t;
  int32_t before;        // this layer's event before, in this row
  int32_t above, below;  // the neighbours' events that it read
  bool z, y;             // z[t-1, l] and z[t, l-1]
};

struct LayerTables {
  int64_t H, H_below, H_above;  // H_above is 0 in the last layer
  Weights weights;
  std::vector<Event> events;
  std::vector<int64_t> first;  // (T+1) number of the first event of each time step
  at::Tensor h, c;             // (N, H) state after each event
  at::Tensor gates;            // (N, 4H) f, i, o, g; with layer normalisation, normalised pre-activations. Later ds.
  at::Tensor rstd;             // (N,) of the gates' layer normalisation
  at::Tensor v;                // (N, 4H_below) V h for the layer below; not in the first layer
  // What a COPY step after the event did not do; not in the first layer.
  at::Tensor not_h;      // (N, H) o*tanh(c) - h
  at::Tensor not_flush;  // (N, H) i*g - c
  at::Tensor not_update; // (N, H) f*c + i*g - c
  // Dot products of h with the detectors that read it: this layer's, that of the layer above, that of the layer below.
  at::Tensor u_z, w_z, v_z;  // (N,)
  at::Tensor index;          // (T, B) int64: the current event
};

struct Problem {
  int64_t L, T, B, input_size;
  at::Tensor x;                         // (T, B, input_size)
  std::vector<int64_t> lengths;         // (B) valid steps of each row
  bool padded;
  std::optional<at::Tensor> given;      // (T, B, L-1)
  std::optional<at::Tensor> uniforms;   // (T, B, L-1) float32
  double slope;
  bool hold, training;
};

struct Tables {
  Problem problem;
  std::vector<LayerTables> layers;
  at::Tensor s_z, fires;  // (T, B, L-1) detectors' pre-activations, and bound(z~) whether or not it was used
  at::Tensor z;           // (T, B, L-1)
  at::Tensor x_z;         // (T*B,) dot products of x with the first detector
  at::Tensor z_start;     // (B, L-1)
};

struct Timing {
  double total = 0, products = 0;
};

template <typename T>
T* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

}  // namespace hmrnn
