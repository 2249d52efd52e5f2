// The event-driven HM-LSTM: the mathematics of events.py.
#pragma once

#include <memory>

#include "tables.h"

namespace hmrnn {

struct ForwardResult {
  std::vector<at::Tensor> values, tangents, index, c_last;
  at::Tensor z, z_last;
  std::shared_ptr<Tables> tables;
};

struct BackwardResult {
  at::Tensor x;
  std::vector<at::Tensor> h, c;
  at::Tensor z;
  std::vector<std::vector<at::Tensor>> weights;
};

ForwardResult forward(Problem problem, std::vector<Weights> weights, const std::vector<at::Tensor>& h,
                      const std::vector<at::Tensor>& c, const at::Tensor& z);

BackwardResult backward(Tables& tables, const std::vector<at::Tensor>& d_values,
                        const std::vector<std::optional<at::Tensor>>& d_repeats, const at::Tensor& d_z,
                        const std::vector<at::Tensor>& d_c_last, const at::Tensor& d_z_last, bool want_x);

}  // namespace hmrnn
