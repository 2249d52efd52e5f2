// What Python sees.
#include <torch/extension.h>

#include "kernel.h"

namespace {

using hmrnn::Problem;
using Optional = std::optional<at::Tensor>;

hmrnn::ForwardResult forward(const std::vector<std::vector<Optional>>& weights, const at::Tensor& x,
                             const std::vector<at::Tensor>& h, const std::vector<at::Tensor>& c, const at::Tensor& z,
                             const Optional& lengths, const Optional& given, const Optional& uniforms, double slope, bool hold,
                             bool training) {
  Problem problem;
  problem.L = static_cast<int64_t>(weights.size());
  problem.T = x.size(0);
  problem.B = x.size(1);
  problem.input_size = x.size(2);
  TORCH_CHECK(problem.B * (problem.T + 1) < (int64_t(1) << 29), "too many time steps times batch rows for one call");
  problem.x = x.contiguous();
  problem.padded = lengths.has_value();
  problem.lengths.assign(problem.B, problem.T);
  if (lengths) std::copy_n(lengths->data_ptr<int64_t>(), problem.B, problem.lengths.begin());
  if (given) problem.given = given->contiguous();
  if (uniforms) problem.uniforms = uniforms->contiguous();
  problem.slope = slope;
  problem.hold = hold;
  problem.training = training;
  std::vector<hmrnn::Weights> layers;
  for (auto& layer : weights) layers.push_back(hmrnn::Weights::from(layer));
  return hmrnn::forward(problem, layers, h, c, z.contiguous());
}

std::vector<at::Tensor> contiguous(std::vector<at::Tensor> tensors) {
  for (auto& tensor : tensors) tensor = tensor.contiguous();
  return tensors;
}

std::vector<Optional> contiguous(std::vector<Optional> tensors) {
  for (auto& tensor : tensors)
    if (tensor) tensor = tensor->contiguous();
  return tensors;
}

hmrnn::StreamResult stream(const std::vector<std::vector<Optional>>& weights, const at::Tensor& x, const std::vector<at::Tensor>& h,
                           const std::vector<at::Tensor>& c, const at::Tensor& z, const Optional& given, const Optional& uniforms,
                           double slope, bool hold) {
  at::NoGradGuard no_grad;
  hmrnn::StreamInput in{{}, x.contiguous(), contiguous(h), contiguous(c), z.contiguous(), {}, {}, slope, hold};
  if (given) in.given = given->contiguous();
  if (uniforms) in.uniforms = uniforms->contiguous();
  for (auto& layer : weights) in.weights.push_back(hmrnn::Weights::from(layer));
  return hmrnn::stream(in);
}

hmrnn::BackwardResult backward(hmrnn::Tables& tables, const std::vector<Optional>& d_values,
                               const std::vector<Optional>& d_repeats, const at::Tensor& d_z,
                               const std::vector<at::Tensor>& d_c_last, const at::Tensor& d_z_last, bool want_x) {
  return hmrnn::backward(tables, contiguous(d_values), contiguous(d_repeats), d_z.contiguous(), contiguous(d_c_last),
                         d_z_last.contiguous(), want_x);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<hmrnn::Tables, std::shared_ptr<hmrnn::Tables>>(m, "Tables");
  py::class_<hmrnn::Timing>(m, "Timing")
      .def_readonly("total", &hmrnn::Timing::total)
      .def_readonly("products", &hmrnn::Timing::products);
  py::class_<hmrnn::ForwardResult>(m, "ForwardResult")
      .def_readonly("values", &hmrnn::ForwardResult::values)
      .def_readonly("tangents", &hmrnn::ForwardResult::tangents)
      .def_readonly("index", &hmrnn::ForwardResult::index)
      .def_readonly("c_last", &hmrnn::ForwardResult::c_last)
      .def_readonly("z", &hmrnn::ForwardResult::z)
      .def_readonly("z_last", &hmrnn::ForwardResult::z_last)
      .def_readonly("tables", &hmrnn::ForwardResult::tables)
      .def_readonly("timing", &hmrnn::ForwardResult::timing);
  py::class_<hmrnn::BackwardResult>(m, "BackwardResult")
      .def_readonly("x", &hmrnn::BackwardResult::x)
      .def_readonly("h", &hmrnn::BackwardResult::h)
      .def_readonly("c", &hmrnn::BackwardResult::c)
      .def_readonly("z", &hmrnn::BackwardResult::z)
      .def_readonly("weights", &hmrnn::BackwardResult::weights)
      .def_readonly("timing", &hmrnn::BackwardResult::timing);
  py::class_<hmrnn::StreamResult>(m, "StreamResult")
      .def_readonly("h", &hmrnn::StreamResult::h)
      .def_readonly("c", &hmrnn::StreamResult::c)
      .def_readonly("z", &hmrnn::StreamResult::z)
      .def_readonly("operations", &hmrnn::StreamResult::operations);
  m.def("stream", &stream, py::call_guard<py::gil_scoped_release>());
  m.def("forward", &forward, py::call_guard<py::gil_scoped_release>());
  m.def("backward", &backward, py::call_guard<py::gil_scoped_release>());
}
