// Gradients that are sums over all events: of the matrices, of the detectors' vectors, and of a table of inputs. Each task
// makes its own part of a gradient, in the order of the events; threads take the tasks as they come free.
#include "passes.h"

namespace hmrnn {

namespace {

// What matrices multiplied in one event, and the gradient by the sum of their products. Null: not multiplied there.
template <typename T>
struct Use {
  const T *ds, *inputs[2];
};

// Sums of ds^T . input over the events, for the rows [begin, end) of a matrix, or of two that were used together: then
// ds is rounded once for both.
template <typename T>
struct MatrixTask {
  const std::vector<Use<T>>* uses;
  T* out[2];           // (4H, widths[k]); the second may be null
  int64_t widths[2];
  int64_t begin, end;

  int64_t work() const { return static_cast<int64_t>(uses->size()) * (widths[0] + (out[1] ? widths[1] : 0)); }
};

// Room of a thread.
template <typename T>
struct Room {
  Panels<T> inputs;
  Buffer<T> columns;
  RowList<T> list;
  RoundedRows rounded;
  double seconds = 0;
};

constexpr int64_t kDepth = 512;  // events that are summed up at once

template <typename T>
void run(const MatrixTask<T>& task, bool bfloat16, Room<T>& room) {
  const Stopwatch watch(room.seconds);
  const int64_t events = static_cast<int64_t>(task.uses->size()), rows = task.end - task.begin;
  for (int64_t first = 0; first < std::max<int64_t>(1, events); first += kDepth) {
    const int64_t depth = std::min(kDepth, events - first);
    const Use<T>* uses = task.uses->data() + first;
    if constexpr (std::is_same_v<T, float>)
      if (bfloat16) room.rounded.take_transposed([=](int64_t k) { return uses[k].ds; }, depth, task.begin, task.end);
    for (int which = 0; which < 2 && task.out[which]; ++which) {
      const int64_t width = task.widths[which];
      room.list.clear();
      for (int64_t j = 0; j < rows; ++j) room.list.to.push_back(row(task.out[which], task.begin + j, width));
      if (events == 0) {
        zero(room.list.to[0], rows * width);
        continue;
      }
      room.inputs.allocate(depth, width, bfloat16);
      room.inputs.pack_rows([=](int64_t k) { return uses[k].inputs[which]; }, 0, room.inputs.count());
      if constexpr (std::is_same_v<T, float>)
        if (bfloat16) {
          room.rounded.multiply(room.inputs.pairs(), 0, room.inputs.count(), width, room.list.to.data(), first > 0);
          continue;
        }
      for (int64_t k = 0; k < depth; ++k) room.list.from.push_back(uses[k].ds + task.begin);
      multiply_transposed(room.list.from, room.inputs, room.list.to, first > 0, room.columns);
    }
  }
}

// The uses of a layer's matrices: U and W in nearly all events, V in few.
template <typename T>
struct Uses {
  std::vector<Use<T>> U_and_W, V;

  Uses(const Tables<T>& tables, int64_t l) {
    for (const Group<T>& group : tables.groups) {
      const Layer<T>& layer = group.layers[l];
      const T* below = l ? group.layers[l - 1].handed : tables.x;
      for (int64_t e = group.rows(); e < layer.count; ++e) {
        const Event& event = layer.events[e];
        const T* ds = row(layer.gates, e, 4 * layer.H);
        const T* fed = event.y && below ? row(below, event.below, layer.H_below) : nullptr;
        U_and_W.push_back({ds, {row(layer.h, event.before, layer.H), fed}});
        if (event.z) V.push_back({ds, {row(group.layers[l + 1].h, event.above, layer.H_above), nullptr}});
      }
    }
  }
};

// out = sum of by[e] * h[e] over the events of layer k.
template <typename T>
void sum_reads(const Tables<T>& tables, int64_t k, const std::vector<std::vector<Buffer<T>>>& by, void* out) {
  const int64_t H = tables.groups[0].layers[k].H;
  zero(static_cast<T*>(out), H);
  for (size_t g = 0; g < tables.groups.size(); ++g) {
    const Layer<T>& layer = tables.groups[g].layers[k];
    for (int64_t e = 0; e < layer.count; ++e)
      if (by[g][k].get()[e] != T(0)) axpy(by[g][k].get()[e], row(layer.h, e, H), static_cast<T*>(out), H);
  }
}

template <typename T>
void sum_detector(const Tables<T>& tables, const DetectorGradients<T>& detectors, int64_t l, HmrnnBackward& gradients) {
  const HmrnnWeights& out = gradients.d_weights[l];
  sum_reads(tables, l, detectors.u_z, out.U_z);
  sum_reads(tables, l + 1, detectors.v_z, out.V_z);
  T sum = 0;
  for (size_t g = 0; g < tables.groups.size(); ++g)
    for (int64_t e = 0; e < tables.groups[g].layers[l].count; ++e) sum += detectors.u_z[g][l].get()[e];
  *static_cast<T*>(out.b_z) = sum;
  if (l > 0) return sum_reads(tables, l - 1, detectors.w_z, out.W_z);
  const T* by = detectors.x_z.get();
  const int64_t inputs = tables.steps * tables.rows;
  if (tables.x) {
    zero(static_cast<T*>(out.W_z), tables.input_size);
    for (int64_t k = 0; k < inputs; ++k)
      if (by[k] != T(0)) axpy(by[k], row(tables.x, k, tables.input_size), static_cast<T*>(out.W_z), tables.input_size);
  } else {
    zero(static_cast<T*>(gradients.d_table_z), tables.table_size);
    for (const Group<T>& group : tables.groups)
      for (int64_t e = group.rows(); e < group.layers[0].count; ++e) {
        const Event& event = group.layers[0].events[e];
        static_cast<T*>(gradients.d_table_z)[event.below] += by[event.t * tables.rows + event.row];
      }
  }
}

// Columns [begin, end) of the gradient by a table of inputs.
template <typename T>
void sum_table(const Tables<T>& tables, T* out, int64_t begin, int64_t end) {
  const int64_t width = 4 * tables.groups[0].layers[0].H;
  for (int64_t s = 0; s < tables.table_size; ++s) zero(row(out, s, width) + begin, end - begin);
  for (const Group<T>& group : tables.groups) {
    const Layer<T>& layer = group.layers[0];
    for (int64_t e = group.rows(); e < layer.count; ++e)
      axpy(T(1), row(layer.gates, e, width) + begin, row(out, layer.events[e].below, width) + begin, end - begin);
  }
}

}  // namespace

template <typename T>
double sum_up(Tables<T>& tables, const DetectorGradients<T>& detectors, HmrnnBackward& gradients, const Pool::Lease& lease) {
  constexpr int64_t kFewest = 128;  // rows of a task: its inputs are packed for all of them
  const int64_t L = tables.layers, shares = 2 * lease.threads();
  std::deque<Uses<T>> uses;
  std::vector<MatrixTask<T>> tasks;
  for (int64_t l = 0; l < L; ++l) {
    const Layer<T>& layer = tables.groups[0].layers[l];
    const HmrnnWeights& out = gradients.d_weights[l];
    uses.emplace_back(tables, l);
    auto add = [&](const std::vector<Use<T>>& of, void* out, int64_t width, void* too = nullptr, int64_t its_width = 0) {
      const int64_t rows = 4 * layer.H, size = std::max(kFewest, (rows + shares - 1) / shares);
      for (int64_t begin = 0; begin < rows && out; begin += size)
        tasks.push_back({&of, {static_cast<T*>(out), static_cast<T*>(too)}, {width, its_width}, begin, std::min(rows, begin + size)});
    };
    add(uses.back().U_and_W, out.U, layer.H, out.W, layer.H_below);
    add(uses.back().V, out.V, layer.H_above);
  }
  // The longest first: what is begun last should not be waited for.
  std::stable_sort(tasks.begin(), tasks.end(), [](auto& a, auto& b) { return a.work() > b.work(); });
  const int64_t matrices = static_cast<int64_t>(tasks.size()), width = 4 * tables.groups[0].layers[0].H;
  const int64_t parts = gradients.d_table ? shares : 0;
  std::vector<Room<T>> rooms(lease.threads());
  share_out(lease, matrices + parts + L - 1, [&](int64_t k, int id) {
    if (k < matrices) return run(tasks[k], tables.bfloat16, rooms[id]);
    k -= matrices;
    if (k < parts) return sum_table(tables, static_cast<T*>(gradients.d_table), width * k / parts, width * (k + 1) / parts);
    sum_detector(tables, detectors, k - parts, gradients);
  });
  double most = 0;
  for (auto& room : rooms) most = std::max(most, room.seconds);
  return most;
}

template double sum_up<float>(Tables<float>&, const DetectorGradients<float>&, HmrnnBackward&, const Pool::Lease&);
template double sum_up<double>(Tables<double>&, const DetectorGradients<double>&, HmrnnBackward&, const Pool::Lease&);

}  // namespace hmrnn
