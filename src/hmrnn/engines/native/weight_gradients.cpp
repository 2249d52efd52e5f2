// The gradients of a layer's matrices: one product over all its events.
#include "kernel.h"
#include "team.h"

namespace hmrnn {

namespace {

at::Tensor gather(const at::Tensor& table, const LayerTables& layer, int64_t B, int32_t Event::*which) {
  const int64_t N = layer.events.size() - B;
  at::Tensor index = at::empty({N}, table.options().dtype(at::kLong));
  for (int64_t k = 0; k < N; ++k) index.data_ptr<int64_t>()[k] = layer.events[B + k].*which;
  return table.index_select(0, index);
}

}  // namespace

void matrix_gradients(Tables& tables, int64_t l, Weights& out, at::Tensor& dx, bool want_x, double& seconds) {
  const Problem& problem = tables.problem;
  LayerTables& layer = tables.layers[l];
  const int64_t B = problem.B, N = layer.events.size() - B;
  const at::Tensor ds = layer.gates.narrow(0, B, N), ds_t = ds.t();
  auto mm = [&](const at::Tensor& a, const at::Tensor& b) {
    Stopwatch watch(seconds);
    return at::mm(a, b);
  };
  const bool everywhere = l == 0 && !problem.padded;  // then the event before is B rows before
  out.U = mm(ds_t, everywhere ? layer.h.narrow(0, 0, N) : gather(layer.h, layer, B, &Event::before));
  if (l == 0) {
    const at::Tensor x = problem.x.view({-1, problem.input_size});
    out.W = mm(ds_t, everywhere ? x : gather(x, layer, B, &Event::below));
    if (want_x && everywhere) {
      dx = mm(ds, layer.weights.W);
    } else if (want_x) {
      dx = at::zeros_like(x);
      at::Tensor index = at::empty({N}, x.options().dtype(at::kLong));
      for (int64_t k = 0; k < N; ++k) index.data_ptr<int64_t>()[k] = layer.events[B + k].below;
      dx.index_copy_(0, index, mm(ds, layer.weights.W));
    }
  }
  // Of W and V only the events that used them.
  auto part = [&](bool Event::*used, int32_t Event::*which, const at::Tensor& table) {
    std::vector<int64_t> events, others;
    for (int64_t k = 0; k < N; ++k)
      if (layer.events[B + k].*used) {
        events.push_back(k);
        others.push_back(layer.events[B + k].*which);
      }
    const auto options = at::TensorOptions().dtype(at::kLong);
    const at::Tensor rows = at::from_blob(events.data(), {static_cast<int64_t>(events.size())}, options);
    const at::Tensor columns = at::from_blob(others.data(), {static_cast<int64_t>(others.size())}, options);
    return mm(ds.index_select(0, rows).t(), table.index_select(0, columns));
  };
  if (l > 0) out.W = part(&Event::y, &Event::below, tables.layers[l - 1].h);
  if (layer.weights.V.defined()) out.V = part(&Event::z, &Event::above, tables.layers[l + 1].h);
}

}  // namespace hmrnn
