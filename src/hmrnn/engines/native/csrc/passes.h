// What the forward and the backward pass share: which rows wait where, the threads' rooms, and the packed weights.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

#include "cell.h"
#include "packed.h"
#include "tables.h"
#include "team.h"

namespace hmrnn {

constexpr int64_t kWorthThreads = 1 << 20;  // multiply-adds of a call

// Which rows of a group wait at which layer, and the current event of each. Every member of a group has its own.
template <typename T>
class Books {
 public:
  Books(Tables<T>& tables, Group<T>& group)
      : tables(tables), group(group), layers(group.layers), L(tables.layers), R(group.rows()), B(tables.rows),
        current(L, std::vector<int32_t>(R)), waits_(R, -1), waiting_(L) {}

 protected:
  Tables<T>& tables;
  Group<T>& group;
  std::vector<Layer<T>>& layers;
  const int64_t L, R, B;                      // R: rows of the group
  std::vector<std::vector<int32_t>> current;  // (L, R)

  void wait(int64_t l, int64_t r) {
    waits_[r] = static_cast<int32_t>(l);
    ++waiting_[l];
  }

  // Where to go on: in the first layer, which has most of the work, while half of the rows can; then where most wait.
  // -1: all rows are done.
  int64_t next_layer() const {
    const int64_t all = std::accumulate(waiting_.begin(), waiting_.end(), int64_t(0));
    if (all == 0) return -1;
    if (2 * waiting_[0] >= all) return 0;
    return std::max_element(waiting_.begin() + 1, waiting_.end()) - waiting_.begin();
  }

  void take_waiting(int64_t l, std::vector<int64_t>& rows) {
    for (int64_t r = 0; r < R; ++r)
      if (waits_[r] == l) {
        rows.push_back(r);
        waits_[r] = -1;
      }
    waiting_[l] = 0;
  }

 private:
  std::vector<int32_t> waits_;    // (R) a layer, or -1
  std::vector<int64_t> waiting_;  // (L)
};

// What the members of a group share.
template <typename T>
struct Shared {
  Barrier barrier;
  Buffer<T> recurrent, bottom_up, x_z;

  Shared(int team, int64_t rows, int64_t widest)
      : barrier(team), recurrent(rows * 4 * widest), bottom_up(rows * 4 * widest), x_z(rows) {}
};

// One thread: its share of the products, packed weights with rows that it was given one by one.
template <typename T>
struct Member {
  const int id, team;
  Barrier& barrier;
  T *recurrent, *bottom_up;  // (R, 4H) products of the rows at hand
  T* x_z;                    // (R) dot products of x with the first detector
  RowList<T> list;
  RoundedRows rounded;
  double seconds = 0;  // in products

  Member(Shared<T>& shared, int id, int team)
      : id(id), team(team), barrier(shared.barrier), recurrent(shared.recurrent.get()), bottom_up(shared.bottom_up.get()),
        x_z(shared.x_z.get()) {}

  // Room for so many rows, of at most that depth: nothing is allocated later.
  void reserve(int64_t rows, int64_t depth) {
    list.reserve(rows);
    rounded.reserve(rows, depth);
  }

  void multiply(const Panels<T>& weights, bool accumulate) {
    if (list.size() == 0) return;
    const Stopwatch watch(seconds);
    const Share panels(weights.count(), id, team);
    hmrnn::multiply(weights, panels.begin, panels.end, list, accumulate, rounded);
  }
};

template <typename T>
class Pass {
 public:
  Tables<T>& tables;
  std::vector<Panels<T>> U, W, V;  // (L)
  int64_t widest = 0;

  explicit Pass(Tables<T>& tables) : tables(tables), U(tables.layers), W(tables.layers), V(tables.layers) {
    for (const Layer<T>& layer : tables.groups[0].layers) widest = std::max({widest, layer.H, layer.H_below});
    for (const Group<T>& group : tables.groups) {
      shared_.emplace_back(group.team, group.rows(), widest);
      for (int id = 0; id < group.team; ++id) members_.emplace_back(shared_.back(), id, group.team);
    }
  }

  Member<T>& member(const Group<T>& group, int id) {
    for (const Group<T>& before : tables.groups) {
      if (&before == &group) break;
      id += before.team;
    }
    return members_[id];
  }

  double product_seconds() const {
    double most = 0;
    for (const auto& member : members_) most = std::max(most, member.seconds);
    return packing_ + most;
  }

 protected:
  // Packs U, W and V of all layers; W of the first one only if x is multiplied with it. A matrix is (units, inputs): forward
  // it is multiplied transposed.
  void pack_weights(const Pool::Lease& lease, bool of_x, bool transposed) {
    const Stopwatch watch(packing_);
    constexpr int64_t kAtOnce = 8;
    struct Task {
      Panels<T>* panels;
      const T* matrix;
      int64_t first;  // panel
    };
    std::vector<Task> tasks;
    auto add = [&](Panels<T>& panels, const T* matrix, int64_t inputs, int64_t units) {
      panels.allocate(transposed ? inputs : 4 * units, transposed ? 4 * units : inputs, tables.bfloat16);
      for (int64_t first = 0; first < panels.count(); first += kAtOnce) tasks.push_back({&panels, matrix, first});
    };
    for (int64_t l = 0; l < tables.layers; ++l) {
      const Layer<T>& layer = tables.groups[0].layers[l];
      add(U[l], layer.w.U, layer.H, layer.H);
      if (l > 0 || of_x) add(W[l], layer.w.W, layer.H_below, layer.H);
      if (layer.w.V) add(V[l], layer.w.V, layer.H_above, layer.H);
    }
    share_out(lease, static_cast<int64_t>(tasks.size()), [&](int64_t k, int) {
      const auto [panels, matrix, first] = tasks[k];
      const int64_t end = std::min(first + kAtOnce, panels->count()), width = panels->width;
      if (transposed)
        panels->pack_transposed(matrix, first, end);
      else
        panels->pack_rows([matrix = matrix, width](int64_t k) { return row(matrix, k, width); }, first, end);
    });
  }

 private:
  std::deque<Shared<T>> shared_;       // one a group
  std::deque<Member<T>> members_;   // one a thread, group by group
  double packing_ = 0;
};

template <typename T>
class ForwardPass : public Pass<T> {
 public:
  std::vector<const T*> h, c;
  std::vector<int64_t*> index;
  std::vector<T*> c_last;
  T *z, *z_last;

  ForwardPass(Tables<T>& tables, const HmrnnCall& call, const HmrnnForward& out)
      : Pass<T>(tables), z(static_cast<T*>(out.z)), z_last(static_cast<T*>(out.z_last)) {
    for (int64_t l = 0; l < tables.layers; ++l) {
      h.push_back(static_cast<const T*>(call.h[l]));
      c.push_back(static_cast<const T*>(call.c[l]));
      index.push_back(out.index[l]);
      c_last.push_back(static_cast<T*>(out.c_last[l]));
    }
  }

  void pack(const Pool::Lease& lease) { this->pack_weights(lease, this->tables.x, true); }
};

template <typename T>
struct SavedTables : AnyTables {
  Tables<T> tables;
  SavedTables(const HmrnnCall& call, const HmrnnForward& out) : tables(call, out) {}
  void backward(HmrnnBackward& gradients) override;
};

template <typename T>
void forward(const HmrnnCall& call, HmrnnForward& out, std::unique_ptr<AnyTables>& kept);

// By what detectors read: from it come the gradients by their vectors.
template <typename T>
struct DetectorGradients {
  std::vector<std::vector<Buffer<T>>> u_z, v_z, w_z;  // (groups, L): by the dot products of each event's h, (N)
  Buffer<T> x_z;                                      // (T, B): by those of x with the first detector
};

void product(const HmrnnProduct& product);

template <typename T>
void expansion_backward(const HmrnnExpansion& expansion);

// Gradients of the layers' matrices, and of the vectors of the detectors: sums over all events. Seconds in products.
template <typename T>
double sum_up(Tables<T>& tables, const DetectorGradients<T>& detectors, HmrnnBackward& gradients, const Pool::Lease& lease);

}  // namespace hmrnn
