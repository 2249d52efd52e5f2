// The event-driven HM-LSTM: the mathematics of events.py.
#pragma once

#include <memory>

#include "tables.h"

namespace hmrnn {

struct ForwardResult {
  std::vector<at::Tensor> values, tangents, index, c_last;
  at::Tensor z, z_last;
  std::shared_ptr<Tables> tables;
  Timing timing;
};

struct BackwardResult {
  at::Tensor x;
  std::vector<at::Tensor> h, c;
  at::Tensor z;
  std::vector<std::vector<at::Tensor>> weights;
  Timing timing;
};

// A single time step without a gradient. Tensors of layers that COPY in every row are handed through as they are.
struct StreamInput {
  std::vector<Weights> weights;
  at::Tensor x;                   // (B, input_size)
  std::vector<at::Tensor> h, c;   // L times (B, H)
  at::Tensor z;                   // (B, L-1)
  std::optional<at::Tensor> given, uniforms;  // (B, L-1)
  double slope;
  bool hold;
};

constexpr int8_t kUpdate = 0, kCopy = 1, kFlush = 2;  // as in sequence.Operation

struct StreamResult {
  std::vector<at::Tensor> h, c;
  at::Tensor z, operations;  // (B, L-1), (B, L) int8
};

StreamResult stream(const StreamInput& in);

ForwardResult forward(Problem problem, std::vector<Weights> weights, const std::vector<at::Tensor>& h,
                      const std::vector<at::Tensor>& c, const at::Tensor& z);

// Gradients that are not given are zero.
BackwardResult backward(Tables& tables, const std::vector<std::optional<at::Tensor>>& d_values,
                        const std::vector<std::optional<at::Tensor>>& d_repeats, const at::Tensor& d_z,
                        const std::vector<at::Tensor>& d_c_last, const at::Tensor& d_z_last, bool want_x);

// W, U and V of `out`, for layer l, once ds of every event stands where its gates were; dx, if it is wanted.
void matrix_gradients(Tables& tables, int64_t l, Weights& out, at::Tensor& dx, bool want_x, double& seconds);

}  // namespace hmrnn
