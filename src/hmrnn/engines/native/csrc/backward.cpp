// The backward pass: time backwards, layers downwards, each batch row at its own pace. dF, dU and dC are the gradients by
// the coefficients of FLUSH, UPDATE and COPY: flush = z, update = (1-z)*y, copy = (1-z)*(1-y), where z = z[t-1,l] and
// y = z[t,l-1].
#include <stdexcept>

#include "passes.h"

namespace hmrnn {

namespace {

// A layer on the way back, row by row.
template <typename T>
struct LayerBackward {
  std::vector<T> dh, dc;         // (B, H) by h[t,l] and c[t,l], from uses inside the network
  std::vector<T> dz, dz_before;  // (B) by z[t,l] and z[t-1,l]
  std::vector<T> repeats;        // (B) by the decisions to COPY since t
  // In a run of COPY steps these stay as they are, until dh changes.
  std::vector<T> by_h, by_flush, by_update;
  std::vector<char> fresh;  // (B)
  const T *d_values, *d_repeats;

  LayerBackward(int64_t B, int64_t H)
      : dh(B * H), dc(B * H), dz(B), dz_before(B), repeats(B), by_h(B), by_flush(B), by_update(B), fresh(B) {}
};

template <typename T>
class BackwardPass : public Pass<T> {
 public:
  HmrnnBackward& gradients;
  std::deque<LayerBackward<T>> layers;
  std::vector<std::vector<VectorSums<T>>> sums;  // (threads, L)
  DetectorGradients<T> detectors;

  BackwardPass(Tables<T>& tables, HmrnnBackward& gradients) : Pass<T>(tables), gradients(gradients) {
    const int64_t L = tables.layers, B = tables.rows, T_ = tables.steps;
    for (int64_t l = 0; l < L; ++l) {
      const Layer<T>& layer = tables.groups[0].layers[l];
      auto& back = layers.emplace_back(B, layer.H);
      back.d_values = static_cast<const T*>(gradients.values[l]);
      back.d_repeats = static_cast<const T*>(gradients.repeats[l]);
      std::copy_n(static_cast<const T*>(gradients.c_last[l]), B * layer.H, back.dc.data());
      for (int64_t b = 0; b < B; ++b) {
        if (l + 1 < L) back.dz_before[b] = static_cast<const T*>(gradients.z_last)[b * (L - 1) + l];
        // padding repeats the last state, too
        for (int64_t t = tables.lengths[b]; t < T_ && back.d_repeats; ++t) back.repeats[b] += back.d_repeats[t * B + b];
      }
    }
    sums.resize(tables.threads);
    for (auto& thread : sums)
      for (const Layer<T>& layer : tables.groups[0].layers) thread.emplace_back(layer.H);
    detectors.x_z = zeros(T_ * B);
    for (auto* by : {&detectors.u_z, &detectors.v_z, &detectors.w_z})
      for (const Group<T>& group : tables.groups) {
        by->emplace_back();
        for (const Layer<T>& layer : group.layers) by->back().push_back(zeros(layer.count));
      }
  }

  void pack(const Pool::Lease& lease) { this->pack_weights(lease, gradients.d_x, false); }

 private:
  static Buffer<T> zeros(int64_t size) {
    Buffer<T> buffer(size);
    std::fill_n(buffer.get(), size, T(0));
    return buffer;
  }
};

// What one thread does: books for all rows of its group, products by columns, everything else for its own rows.
template <typename T>
class BackwardWorker : Books<T> {
 public:
  BackwardWorker(BackwardPass<T>& pass, Group<T>& group, int id, int thread)
      : Books<T>(pass.tables, group), pass_(pass), member_(pass.member(group, id)), mine_(group.rows(), id, group.team),
        sums_(pass.sums[thread]), u_z_(pass.detectors.u_z[&group - pass.tables.groups.data()]),
        v_z_(pass.detectors.v_z[&group - pass.tables.groups.data()]), w_z_(pass.detectors.w_z[&group - pass.tables.groups.data()]),
        scratch_(pass.widest), t_(group.rows()), done_(group.rows()), d_x_(static_cast<T*>(pass.gradients.d_x)) {
    rows_.reserve(R);
    member_.reserve(R, 4 * pass.widest);
  }

  void run() {
    // The last event of each row is the one that no other follows.
    for (int64_t l = 0; l < L; ++l)
      for (int64_t e = 0; e < layers[l].count; ++e) current[l][layers[l].events[e].row - group.begin] = static_cast<int32_t>(e);
    for (int64_t r = 0; r < R; ++r) {
      const int64_t b = group.begin + r;
      t_[r] = tables.lengths[b] - 1;
      if (d_x_ && mine_.has(r))
        for (int64_t t = tables.lengths[b]; t < tables.steps; ++t) zero(row(d_x_, t * B + b, tables.input_size), tables.input_size);
      descend(L - 1, r);
    }
    for (int64_t l; (l = this->next_layer()) >= 0;) together(l);
    finish();
  }

 private:
  using Books<T>::tables, Books<T>::group, Books<T>::layers, Books<T>::L, Books<T>::R, Books<T>::B, Books<T>::current;
  BackwardPass<T>& pass_;
  Member<T>& member_;
  const Share mine_;  // of the group's rows
  std::vector<VectorSums<T>>& sums_;
  std::vector<Buffer<T>>&u_z_, &v_z_, &w_z_;
  CellScratch<T> scratch_;
  std::vector<int64_t> t_;     // (R) the step that each row is at
  std::vector<int32_t> done_;  // (R) the event that a waiting row has just gone back over
  std::vector<int64_t> rows_;  // at hand
  T* const d_x_;

  // Goes back over what a row did, down to layer 0 and on to the step before, until an event needs products.
  void descend(int64_t l, int64_t r) {
    const int64_t b = group.begin + r;
    for (; t_[r] >= 0; --t_[r], l = L - 1)
      for (; l >= 0; --l) {
        const int32_t e = current[l][r];
        const bool event = layers[l].events[e].t == t_[r];
        if (mine_.has(r)) step(l, b, e, event);
        if (event) {
          done_[r] = e;
          current[l][r] = layers[l].events[e].before;
          return this->wait(l, r);
        }
      }
  }

  // Everything but the products, for layer l of a row at a step; e is its current event.
  void step(int64_t l, int64_t b, int32_t e, bool event) {
    const int64_t r = b - group.begin, t = t_[r];
    auto& back = pass_.layers[l];
    if (l == L - 1) begin(t, b);
    if (back.d_repeats) back.repeats[b] += back.d_repeats[t * B + b];
    T by_z = 0, by_y = 0;
    if (event)
      event_row(l, b, e, by_z, by_y);
    else if (l > 0)
      copy_row(l, b, e, by_z, by_y);
    if (l + 1 < L) {
      if (!tables.given) detector(l, b, t, event ? layers[l].events[e].before : e, event, by_z, by_y);
      back.dz_before[b] += by_z;
    }
    if (l > 0) pass_.layers[l - 1].dz[b] += by_y;
  }

  void begin(int64_t t, int64_t b) {
    for (int64_t l = 0; l + 1 < L; ++l) {
      auto& back = pass_.layers[l];
      back.dz[b] = back.dz_before[b] + static_cast<const T*>(pass_.gradients.z)[tables.at(t, b, l)];
      back.dz_before[b] = 0;
    }
  }

  // A COPY: dh and dc pass through. Gradients by z and y: against what the layer would have done.
  void copy_row(int64_t l, int64_t b, int32_t e, T& by_z, T& by_y) {
    const Layer<T>& layer = layers[l];
    auto& back = pass_.layers[l];
    const int64_t H = layer.H;
    if (!back.fresh[b]) {
      const T *dh = row(back.dh.data(), b, H), *dc = row(back.dc.data(), b, H);
      back.by_h[b] = dot(dh, row(layer.not_h, e, H), H);
      back.by_flush[b] = dot(dc, row(layer.not_flush, e, H), H);
      back.by_update[b] = dot(dc, row(layer.not_update, e, H), H);
      back.fresh[b] = 1;
    }
    by_z = back.by_h[b] + back.repeats[b] + back.by_flush[b];
    by_y = back.by_h[b] + back.repeats[b] + back.by_update[b];
  }

  void event_row(int64_t l, int64_t b, int32_t e, T& by_z, T& by_y) {
    Layer<T>& layer = layers[l];
    auto& back = pass_.layers[l];
    const Event& event = layer.events[e];
    const int64_t H = layer.H;
    T* dh_run = row(back.dh.data(), b, H);
    std::memcpy(scratch_.dh, dh_run, H * sizeof(T));
    if (back.d_values) axpy(T(1), row(back.d_values, layer.offset + e, H), scratch_.dh, H);
    const Choice<T> d = cell_backward(layer, e, row(back.dc.data(), b, H), sums_[l], scratch_);
    by_z = d.flush - (event.y ? d.update : d.copy);
    by_y = event.z ? T(0) : d.update - d.copy;
    if (l + 1 < L) by_z += dot(scratch_.ds, row(layers[l + 1].v, event.above, 4 * H), 4 * H);
    zero(dh_run, H);  // the product with U comes on top
    back.repeats[b] = 0;
    back.fresh[b] = 0;
  }

  // Through bound() to s_z, and from there on. `before` is the layer's event at t-1.
  void detector(int64_t l, int64_t b, int64_t t, int32_t before, bool event, T& by_z, T& by_y) {
    const int64_t at = tables.at(t, b, l), r = b - group.begin;
    const bool z = t ? tables.z.get()[at - B * (L - 1)] : tables.z_start[b * (L - 1) + l];
    const bool y = l == 0 || tables.z.get()[at - 1];
    const T dz = pass_.layers[l].dz[b];
    if (tables.hold && tables.fires.get()[at]) {  // z = (flush + update) * bound(z~)
      if (!y) by_z += dz;
      if (!z) by_y += dz;
    }
    if ((tables.hold && !event) || !(std::abs(tables.slope * tables.s_z.get()[at]) < T(1))) return;
    const T ds_z = dz * tables.slope / 2;
    reads(l, b, before, layers[l].w.U_z, ds_z, u_z_);
    const int32_t above = current[l + 1][r];
    by_z += ds_z * layers[l + 1].v_z[above];
    if (z) reads(l + 1, b, above, layers[l].w.V_z, ds_z, v_z_);
    if (l == 0) {
      pass_.detectors.x_z.get()[t * B + b] = ds_z;
      return;
    }
    const int32_t below = current[l - 1][r];
    by_y += ds_z * layers[l - 1].w_z[below];
    if (y) reads(l - 1, b, below, layers[l].w.W_z, ds_z, w_z_);
  }

  // A detector has read h of layer k's event e.
  void reads(int64_t k, int64_t b, int32_t e, const T* weights, T ds_z, std::vector<Buffer<T>>& by) {
    auto& back = pass_.layers[k];
    axpy(ds_z, weights, row(back.dh.data(), b, layers[k].H), layers[k].H);
    back.fresh[b] = 0;
    by[k].get()[e] += ds_z;
  }

  // ds through U, V and W, for all rows that wait at layer l.
  void together(int64_t l) {
    Layer<T>& layer = layers[l];
    rows_.clear();
    this->take_waiting(l, rows_);
    member_.barrier.wait();
    products(l);
    member_.barrier.wait();
    for (size_t m = 0; m < rows_.size(); ++m) {
      const int64_t r = rows_[m], b = group.begin + r;
      const Event& event = layer.events[done_[r]];
      if (mine_.has(r)) {
        if (l > 0)
          from_above(l - 1, b, row(member_.bottom_up, m, layer.H_below), event);
        else if (d_x_ && L > 1)
          axpy(pass_.detectors.x_z.get()[event.t * B + b], layer.w.W_z, row(d_x_, event.below, layer.H_below), layer.H_below);
        if (event.z) pass_.layers[l + 1].fresh[b] = 0;
      }
      if (l > 0) {
        descend(l - 1, r);
      } else {
        --t_[r];
        descend(L - 1, r);
      }
    }
  }

  void products(int64_t l) {
    Layer<T>& layer = layers[l];
    const int64_t H = layer.H;
    auto list = [&](auto into) {
      member_.list.clear();
      for (size_t m = 0; m < rows_.size(); ++m)
        if (T* to = into(m)) member_.list.add(row(layer.gates, done_[rows_[m]], 4 * H), to);
    };
    list([&](size_t m) { return row(pass_.layers[l].dh.data(), group.begin + rows_[m], H); });
    member_.multiply(pass_.U[l], true);
    if (l + 1 < L) {
      T* above = pass_.layers[l + 1].dh.data();
      list([&](size_t m) { return layer.events[done_[rows_[m]]].z ? row(above, group.begin + rows_[m], layer.H_above) : nullptr; });
      member_.multiply(pass_.V[l], true);
    }
    if (l > 0) {
      list([&](size_t m) { return row(member_.bottom_up, m, layer.H_below); });
      member_.multiply(pass_.W[l], false);
    } else if (d_x_) {
      list([&](size_t m) { return row(d_x_, layer.events[done_[rows_[m]]].below, layer.H_below); });
      member_.multiply(pass_.W[l], false);
    }
  }

  // What an event of the layer above sent down through W.
  void from_above(int64_t l, int64_t b, const T* down, const Event& event) {
    const int64_t H = layers[l].H;
    auto& back = pass_.layers[l];
    const Layer<T>& layer = layers[l];
    const int64_t r = b - group.begin;
    back.dz[b] += dot(down, row(layer.handed, current[l][r], H), H);
    if (event.y) {
      T* dh = row(back.dh.data(), b, H);
      if (layer.mask)
        add_multiplied(down, row(layer.mask, r, H), dh, H);
      else
        axpy(T(1), down, dh, H);
      back.fresh[b] = 0;
    }
  }

  void finish() {
    for (int64_t l = 0; l < L; ++l) {
      const int64_t H = layers[l].H;
      auto& back = pass_.layers[l];
      for (int64_t r = mine_.begin; r < mine_.end; ++r) {
        const int64_t b = group.begin + r;
        T* dh = row(static_cast<T*>(pass_.gradients.d_h[l]), b, H);
        std::memcpy(dh, row(back.dh.data(), b, H), H * sizeof(T));
        if (back.d_values) axpy(T(1), row(back.d_values, layers[l].offset + r, H), dh, H);
        std::memcpy(row(static_cast<T*>(pass_.gradients.d_c[l]), b, H), row(back.dc.data(), b, H), H * sizeof(T));
        if (l + 1 < L) static_cast<T*>(pass_.gradients.d_z)[b * (L - 1) + l] = back.dz_before[b];
      }
    }
  }
};

// The sums of all threads, thread by thread.
template <typename T>
void put_vectors(BackwardPass<T>& pass, int64_t l, const HmrnnWeights& into) {
  const int64_t H = pass.tables.groups[0].layers[l].H;
  auto put = [&](std::vector<T> VectorSums<T>::*which, void* to, int64_t size) {
    if (!to) return;
    zero(static_cast<T*>(to), size);
    for (auto& thread : pass.sums) axpy(T(1), (thread[l].*which).data(), static_cast<T*>(to), size);
  };
  put(&VectorSums<T>::b, into.b, 4 * H);
  put(&VectorSums<T>::gain, into.gain, 4 * H);
  put(&VectorSums<T>::gain_c, into.gain_c, H);
  put(&VectorSums<T>::bias_c, into.bias_c, H);
}

}  // namespace

template <typename T>
void SavedTables<T>::backward(HmrnnBackward& gradients) {
  const auto start = std::chrono::steady_clock::now();
  const Pool::Lease lease(tables.threads, true);  // the groups were made for so many threads
  if (lease.threads() < tables.threads) throw std::runtime_error("the system gives no more threads");
  BackwardPass<T> pass(tables, gradients);
  pass.pack(lease);
  std::vector<std::unique_ptr<BackwardWorker<T>>> workers;
  for (Group<T>& group : tables.groups)
    for (int id = 0; id < group.team; ++id)
      workers.push_back(std::make_unique<BackwardWorker<T>>(pass, group, id, static_cast<int>(workers.size())));
  lease.run([&](int id) { workers[id]->run(); });
  for (int64_t l = 0; l < tables.layers; ++l) put_vectors(pass, l, gradients.d_weights[l]);
  const double seconds = sum_up<T>(tables, pass.detectors, gradients, lease);
  gradients.seconds[0] = seconds_since(start);
  gradients.seconds[1] = pass.product_seconds() + seconds;
}

template struct SavedTables<float>;
template struct SavedTables<double>;

}  // namespace hmrnn
