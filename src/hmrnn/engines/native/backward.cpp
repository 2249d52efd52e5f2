// The backward pass: time backwards, layers downwards. dF, dU and dC are the gradients by the coefficients of FLUSH, UPDATE
// and COPY: flush = z, update = (1-z)*y, copy = (1-z)*(1-y), where z = z[t-1,l] and y = z[t,l-1].
#include "kernel.h"
#include "pointwise.h"
#include "team.h"

namespace hmrnn {

namespace {

// Gradients of a layer's vectors, summed by one thread.
template <typename T>
struct VectorSums {
  std::vector<T> b, gain, gain_c, bias_c;
  explicit VectorSums(const LayerTables& layer) : b(4 * layer.H), gain(4 * layer.H), gain_c(layer.H), bias_c(layer.H) {}
};

// A layer on the way back, row by row.
template <typename T>
struct LayerBackward {
  std::vector<T> dh, dc;         // (B, H) by h[t,l] and c[t,l], from uses inside the network
  std::vector<T> dz, dz_before;  // (B) by z[t,l] and z[t-1,l]
  std::vector<T> repeats;        // (B) by the decisions to COPY since t
  std::vector<T> down;           // (B, H_below) W^T ds of the events at hand
  std::vector<int32_t> down_of;  // (B) which row of it is this batch row's, or -1
  std::vector<int32_t> current;  // (B) the event at time t
  // In a run of COPY steps these stay as they are, until dh changes.
  std::vector<T> by_h, by_flush, by_update;
  std::vector<char> fresh;  // (B)
  std::vector<T> du_z, dv_z, dw_z;  // (N) by the dot products of each event's h with the detectors
  Packed<T> U, W, V;

  LayerBackward(const LayerTables& layer, int64_t B, int64_t N)
      : dh(B * layer.H), dc(B * layer.H), dz(B), dz_before(B), repeats(B), down(B * layer.H_below), down_of(B, -1), current(B),
        by_h(B), by_flush(B), by_update(B), fresh(B), du_z(N), dv_z(N), dw_z(N) {}
};

template <typename T>
class Backward {
 public:
  Backward(Tables& tables, const std::vector<std::optional<at::Tensor>>& d_values, const std::vector<std::optional<at::Tensor>>& d_repeats,
           const at::Tensor& d_z, const std::vector<at::Tensor>& d_c_last, const at::Tensor& d_z_last)
      : tables_(tables), problem_(tables.problem), tables_of_(tables.layers), d_values_(d_values), d_repeats_(d_repeats), d_z_(d_z) {
    const int64_t L = problem_.L, B = problem_.B;
    dx_z = at::zeros({problem_.T * B}, problem_.x.options());
    for (int64_t l = 0; l < L; ++l) {
      LayerTables& layer = tables_of_[l];
      layers_.emplace_back(layer, B, layer.first[problem_.T]);
      auto& back = layers_.back();
      std::copy_n(data<T>(d_c_last[l]), B * layer.H, back.dc.data());
      back.U.allocate(4 * layer.H, layer.H);
      if (l > 0) back.W.allocate(4 * layer.H, layer.H_below);
      if (l + 1 < L) back.V.allocate(4 * layer.H, layer.H_above);
      for (int64_t b = 0; b < B; ++b) {
        back.current[b] = static_cast<int32_t>(data<int64_t>(layer.index)[(problem_.T - 1) * B + b]);
        if (l + 1 < L) back.dz_before[b] = data<T>(d_z_last)[b * (L - 1) + l];
        // padding repeats the last state, too
        for (int64_t t = problem_.lengths[b]; t < problem_.T && d_repeats_[l]; ++t)
          back.repeats[b] += data<T>(*d_repeats_[l])[t * B + b];
      }
    }
  }

  void run() {
    for (int thread = 0; thread < at::get_num_threads(); ++thread) {
      sums.emplace_back();
      for (auto& layer : tables_of_) sums.back().emplace_back(layer);
    }
    seconds = together<T>([&](Member<T>& member) { Worker(*this, member).run(); });
  }

  std::vector<LayerBackward<T>>& layers() { return layers_; }
  std::vector<std::vector<VectorSums<T>>> sums;  // (threads, L)
  double seconds = 0;                            // in matrix products
  at::Tensor dx_z;                               // (T*B) by the dot products of x with the first detector

 private:
  Tables& tables_;
  const Problem& problem_;
  std::vector<LayerTables>& tables_of_;
  const std::vector<std::optional<at::Tensor>>& d_values_;
  const std::vector<std::optional<at::Tensor>>& d_repeats_;
  const at::Tensor& d_z_;
  std::vector<LayerBackward<T>> layers_;

  // What one thread does: products by columns, everything else for its own batch rows.
  struct Worker {
    Backward& all;
    Member<T>& member;
    const Problem& problem;
    const int64_t L, B;
    const Share rows;
    std::vector<std::vector<int32_t>> done;  // (L, B) the event that was gone back over last
    std::vector<T> scratch;

    Worker(Backward& all, Member<T>& member)
        : all(all), member(member), problem(all.problem_), L(problem.L), B(problem.B), rows(problem.B, member.id, member.threads),
          done(L, std::vector<int32_t>(B)) {
      int64_t widest = 0;
      for (auto& layer : all.tables_of_) widest = std::max(widest, layer.H);
      scratch.resize(12 * widest);
    }

    void run() {
      for (int64_t l = 0; l < L; ++l) {
        member.pack(all.layers_[l].U, all.tables_of_[l].weights.U, false);
        if (l > 0) member.pack(all.layers_[l].W, all.tables_of_[l].weights.W, false);
        if (l + 1 < L) member.pack(all.layers_[l].V, all.tables_of_[l].weights.V, false);
      }
      for (int64_t t = problem.T - 1; t >= 0; --t) {
        for (int64_t b = rows.begin; b < rows.end; ++b)
          if (t < problem.lengths[b]) begin(t, b);
        for (int64_t l = L - 1; l >= 0; --l) step(t, l);
      }
    }

    void begin(int64_t t, int64_t b) {
      for (int64_t l = 0; l + 1 < L; ++l) {
        auto& back = all.layers_[l];
        back.dz[b] = back.dz_before[b] + data<T>(all.d_z_)[(t * B + b) * (L - 1) + l];
        back.dz_before[b] = 0;
      }
    }

    void step(int64_t t, int64_t l) {
      const LayerTables& layer = all.tables_of_[l];
      auto& back = all.layers_[l];
      for (int64_t b = rows.begin; b < rows.end; ++b) {
        if (t >= problem.lengths[b]) continue;
        if (l + 1 < L) from_above(l, b);
        if (all.d_repeats_[l]) back.repeats[b] += data<T>(*all.d_repeats_[l])[t * B + b];
        const int32_t e = back.current[b];
        const bool event = layer.events[e].t == t;
        T by_z = 0, by_y = 0;
        if (event)
          event_row(l, e, b, by_z, by_y);
        else if (l > 0)
          copy_row(l, e, b, by_z, by_y);
        if (l + 1 < L) {
          if (!problem.given) detector(t, l, b, event, by_z, by_y);
          back.dz_before[b] += by_z;
        }
        if (l > 0) all.layers_[l - 1].dz[b] += by_y;
      }
      if (layer.first[t] < layer.first[t + 1]) products(t, l);
    }

    // What the layer above sent down through W at this step, if it had an event.
    void from_above(int64_t l, int64_t b) {
      auto &back = all.layers_[l], &above = all.layers_[l + 1];
      const int32_t m = above.down_of[b];
      if (m < 0) return;
      above.down_of[b] = -1;
      const int64_t H = all.tables_of_[l].H;
      const T* down = above.down.data() + m * H;
      back.dz[b] += dot(down, data<T>(all.tables_of_[l].h) + back.current[b] * H, H);
      // z[t,l] is y of the event above
      if (above_event(l, b).y) {
        axpy(T(1), down, back.dh.data() + b * H, H);
        back.fresh[b] = 0;
      }
    }

    // The event of the layer above that has just been done: the one after its current one.
    const Event& above_event(int64_t l, int64_t b) const { return all.tables_of_[l + 1].events[done[l + 1][b]]; }

    // A COPY: dh and dc pass through. Gradients by z and y: against what the layer would have done.
    void copy_row(int64_t l, int32_t e, int64_t b, T& by_z, T& by_y) {
      const LayerTables& layer = all.tables_of_[l];
      auto& back = all.layers_[l];
      const int64_t H = layer.H;
      if (!back.fresh[b]) {
        const T *dh = back.dh.data() + b * H, *dc = back.dc.data() + b * H;
        back.by_h[b] = dot(dh, data<T>(layer.not_h) + e * H, H);
        back.by_flush[b] = dot(dc, data<T>(layer.not_flush) + e * H, H);
        back.by_update[b] = dot(dc, data<T>(layer.not_update) + e * H, H);
        back.fresh[b] = 1;
      }
      by_z = back.by_h[b] + back.repeats[b] + back.by_flush[b];
      by_y = back.by_h[b] + back.repeats[b] + back.by_update[b];
    }

    // The LSTM's algebra. Leaves ds where the gates were.
    void event_row(int64_t l, int32_t e, int64_t b, T& by_z, T& by_y) {
      LayerTables& layer = all.tables_of_[l];
      auto& back = all.layers_[l];
      auto& sums = all.sums[member.id][l];
      const Event& event = layer.events[e];
      const int64_t H = layer.H;
      T* stored = data<T>(layer.gates) + e * 4 * H;
      const T* gates = reactivated(layer, stored);
      const T *f = gates, *i = gates + H, *o = gates + 2 * H, *g = gates + 3 * H;
      const T *h_before = data<T>(layer.h) + event.before * H, *c_before = data<T>(layer.c) + event.before * H;
      const T* d_value = all.d_values_[l] ? data<T>(*all.d_values_[l]) + e * H : nullptr;
      T *dh_run = back.dh.data() + b * H, *dc_run = back.dc.data() + b * H;
      T *dh = scratch.data() + 4 * H, *dc = scratch.data() + 5 * H, *squashed = scratch.data() + 6 * H;

      through_squash(layer, sums, data<T>(layer.c) + e * H, dh_run, d_value, o, dh, dc, squashed);
      T* ds = scratch.data() + 8 * H;
      const T update = event.z ? T(0) : T(1);
      T dF = 0, d_keep = 0, dC = 0;
#pragma omp simd reduction(+ : dF, d_keep, dC)
      for (int64_t j = 0; j < H; ++j) {
        const T dc_all = dc_run[j] + dc[j], dh_o = dh[j] * o[j] * squashed[j], dc_ig = dc_all * i[j] * g[j];
        dF += dh_o + dc_ig;
        d_keep += dc_all * f[j] * c_before[j];
        dC += dh[j] * h_before[j] + dc_all * c_before[j];
        ds[j] = update * dc_all * c_before[j] * f[j] * (1 - f[j]);
        ds[H + j] = dc_ig * (1 - i[j]);
        ds[2 * H + j] = dh_o * (1 - o[j]);
        ds[3 * H + j] = dc_all * i[j] * (1 - g[j] * g[j]);
        dc_run[j] = update * dc_all * f[j];
      }
      axpy(T(1), ds, sums.b.data(), 4 * H);
      if (layer.weights.gain.defined())
        normalise_backward(ds, stored, data<T>(layer.weights.gain), data<T>(layer.rstd)[e], sums.gain.data(), 4 * H);
      std::memcpy(stored, ds, 4 * H * sizeof(T));

      const T dU = dF + d_keep;
      by_z = dF - (event.y ? dU : dC);
      by_y = event.z ? T(0) : dU - dC;
      if (l + 1 < L) {
        by_z += dot(ds, data<T>(all.tables_of_[l + 1].v) + event.above * 4 * H, 4 * H);
        if (event.z) all.layers_[l + 1].fresh[b] = 0;
      }
      zero(dh_run, H);  // the product with U comes on top
      back.repeats[b] = 0;
      back.fresh[b] = 0;
      back.current[b] = event.before;
      done[l][b] = e;
    }

    // The gates again: with layer normalisation only the normalised pre-activations were kept.
    const T* reactivated(const LayerTables& layer, const T* stored) {
      if (!layer.weights.gain.defined()) return stored;
      T* gates = scratch.data();
      std::memcpy(gates, stored, 4 * layer.H * sizeof(T));
      affine(gates, data<T>(layer.weights.gain), data<T>(layer.weights.b), 4 * layer.H);
      activate(gates, layer.H);
      return gates;
    }

    // dh: by h in all; dc: its share by c, through o*tanh(c) or o*tanh(LN(c)).
    void through_squash(const LayerTables& layer, VectorSums<T>& sums, const T* c, const T* dh_run, const T* d_value, const T* o,
                        T* dh, T* dc, T* squashed) {
      const int64_t H = layer.H;
      const T *gain = data<T>(layer.weights.gain_c), *bias = data<T>(layer.weights.bias_c);
      T *c_hat = scratch.data() + 7 * H, rstd = 1;
      if (gain) {
        rstd = normalise(c, c_hat, H, kLayerNormEps);
#pragma omp simd
        for (int64_t j = 0; j < H; ++j) squashed[j] = tangent(c_hat[j] * gain[j] + bias[j]);
      } else {
#pragma omp simd
        for (int64_t j = 0; j < H; ++j) squashed[j] = tangent(c[j]);
      }
      std::memcpy(dh, dh_run, H * sizeof(T));
      if (d_value) axpy(T(1), d_value, dh, H);
#pragma omp simd
      for (int64_t j = 0; j < H; ++j) dc[j] = dh[j] * o[j] * (1 - squashed[j] * squashed[j]);
      if (gain) {
        axpy(T(1), dc, sums.bias_c.data(), H);
        normalise_backward(dc, c_hat, gain, rstd, sums.gain_c.data(), H);
      }
    }

    // Through bound() to s_z, and from there on.
    void detector(int64_t t, int64_t l, int64_t b, bool event, T& by_z, T& by_y) {
      const LayerTables& layer = all.tables_of_[l];
      LayerTables& layer_above = all.tables_of_[l + 1];
      auto &back = all.layers_[l], &above = all.layers_[l + 1];
      const int64_t at = (t * B + b) * (L - 1) + l;
      const int32_t before = back.current[b], e_above = above.current[b];
      const bool z = t ? data<T>(all.tables_.z)[at - B * (L - 1)] != T(0) : data<T>(all.tables_.z_start)[b * (L - 1) + l] != T(0);
      const bool y = l == 0 || data<T>(all.tables_.z)[at - 1] != T(0);
      const T dz = back.dz[b];
      if (problem.hold && data<T>(all.tables_.fires)[at] != T(0)) {  // z = (flush + update) * bound(z~)
        if (!y) by_z += dz;
        if (!z) by_y += dz;
      }
      const T slope = static_cast<T>(problem.slope);
      if ((problem.hold && !event) || !(std::abs(slope * data<T>(all.tables_.s_z)[at]) < T(1))) return;
      const T ds_z = dz * slope / 2;
      axpy(ds_z, data<T>(layer.weights.U_z), back.dh.data() + b * layer.H, layer.H);
      back.fresh[b] = 0;
      back.du_z[before] += ds_z;
      by_z += ds_z * data<T>(layer_above.v_z)[e_above];
      if (z) {
        axpy(ds_z, data<T>(layer.weights.V_z), above.dh.data() + b * layer_above.H, layer_above.H);
        above.fresh[b] = 0;
        above.dv_z[e_above] += ds_z;
      }
      if (l == 0) {
        data<T>(all.dx_z)[t * B + b] = ds_z;
        return;
      }
      LayerTables& layer_below = all.tables_of_[l - 1];
      auto& below = all.layers_[l - 1];
      const int32_t e_below = below.current[b];
      by_y += ds_z * data<T>(layer_below.w_z)[e_below];
      if (y) {
        axpy(ds_z, data<T>(layer.weights.W_z), below.dh.data() + b * layer_below.H, layer_below.H);
        below.fresh[b] = 0;
        below.dw_z[e_below] += ds_z;
      }
    }

    // ds through U, V and W, for the events of this step.
    void products(int64_t t, int64_t l) {
      LayerTables& layer = all.tables_of_[l];
      auto& back = all.layers_[l];
      const int64_t first = layer.first[t], count = layer.first[t + 1] - first;
      member.barrier.wait();
      rows_of(layer, first, count, back.dh.data(), layer.H, [](const Event&) { return true; });
      member.multiply(back.U, true);
      if (l + 1 < L) {
        rows_of(layer, first, count, all.layers_[l + 1].dh.data(), layer.H_above, [](const Event& event) { return event.z; });
        member.multiply(back.V, true);
      }
      if (l > 0) {
        member.clear();
        for (int64_t m = 0; m < count; ++m) {
          member.add(data<T>(layer.gates) + (first + m) * 4 * layer.H, back.down.data() + m * layer.H_below);
          const int32_t row = layer.events[first + m].row;
          if (row >= rows.begin && row < rows.end) back.down_of[row] = static_cast<int32_t>(m);
        }
        member.multiply(back.W, false);
      }
      member.barrier.wait();
    }

    template <typename Which>
    void rows_of(const LayerTables& layer, int64_t first, int64_t count, T* into, int64_t width, Which which) {
      member.clear();
      for (int64_t e = first; e < first + count; ++e)
        if (which(layer.events[e])) member.add(data<T>(layer.gates) + e * 4 * layer.H, into + layer.events[e].row * width);
    }
  };
};

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, const at::Tensor& like) {
  at::Tensor out = at::empty(shape, like.options());
  std::copy(values.begin(), values.end(), out.data_ptr<T>());
  return out;
}

}  // namespace

BackwardResult backward(Tables& tables, const std::vector<std::optional<at::Tensor>>& d_values,
                        const std::vector<std::optional<at::Tensor>>& d_repeats, const at::Tensor& d_z,
                        const std::vector<at::Tensor>& d_c_last, const at::Tensor& d_z_last, bool want_x) {
  const Problem& problem = tables.problem;
  const int64_t L = problem.L, B = problem.B;
  BackwardResult result;
  const auto start = std::chrono::steady_clock::now();
  result.z = at::empty_like(d_z_last);
  AT_DISPATCH_FLOATING_TYPES(problem.x.scalar_type(), "hmrnn_backward", [&] {
    using T = scalar_t;
    Backward<T> pass(tables, d_values, d_repeats, d_z, d_c_last, d_z_last);
    pass.run();
    result.timing.products = pass.seconds;
    for (int64_t l = 0; l < L; ++l) {
      LayerTables& layer = tables.layers[l];
      auto& back = pass.layers()[l];
      const int64_t H = layer.H, N = layer.events.size();
      result.h.push_back(tensor_of(back.dh, {B, H}, problem.x));
      if (d_values[l]) result.h.back().add_(d_values[l]->narrow(0, 0, B));
      result.c.push_back(tensor_of(back.dc, {B, H}, problem.x));
      for (int64_t b = 0; b < B && l + 1 < L; ++b) result.z.data_ptr<T>()[b * (L - 1) + l] = back.dz_before[b];

      Weights out;
      matrix_gradients(tables, l, out, result.x, want_x, result.timing.products);
      auto sum = [&](auto member, const at::Tensor& like) {
        if (!like.defined()) return at::Tensor();
        at::Tensor total = at::zeros_like(like);
        for (auto& thread : pass.sums) axpy(T(1), (thread[l].*member).data(), total.data_ptr<T>(), total.numel());
        return total;
      };
      out.b = sum(&VectorSums<T>::b, layer.weights.b);
      out.gain = sum(&VectorSums<T>::gain, layer.weights.gain);
      out.gain_c = sum(&VectorSums<T>::gain_c, layer.weights.gain_c);
      out.bias_c = sum(&VectorSums<T>::bias_c, layer.weights.bias_c);
      if (l + 1 < L) {
        auto reads = [&](int64_t k, const std::vector<T>& weights) {
          const LayerTables& read = tables.layers[k];
          const int64_t M = read.events.size();
          return at::mv(read.h.narrow(0, 0, M).t(), tensor_of(weights, {M}, problem.x));
        };
        const at::Tensor du = tensor_of(back.du_z, {N}, problem.x);
        out.U_z = reads(l, back.du_z);
        out.V_z = reads(l + 1, pass.layers()[l + 1].dv_z);
        out.W_z = l ? reads(l - 1, pass.layers()[l - 1].dw_z)
                    : at::mv(problem.x.view({-1, problem.input_size}).t(), pass.dx_z);
        out.b_z = du.sum();
        if (l == 0 && want_x) result.x.addr_(pass.dx_z, layer.weights.W_z);
      }
      result.weights.push_back(out.list());
    }
  });
  if (want_x) result.x = result.x.view_as(problem.x);
  result.timing.total = seconds_since(start);
  return result;
}

}  // namespace hmrnn
