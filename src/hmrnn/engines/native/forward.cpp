// The forward pass: time step by time step, layer by layer, only the rows that have an event.
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernel.h"
#include "pointwise.h"
#include "team.h"

namespace hmrnn {

namespace {

template <typename T>
class Forward {
 public:
  Forward(Tables& tables, const at::Tensor& z) : tables_(tables), problem_(tables.problem), layers_(tables.layers), z_start_(z) {
    const int64_t L = problem_.L, B = problem_.B;
    pack();
    for (int64_t l = 0; l < L; ++l) {
      recurrent_.emplace_back(B * 4 * layers_[l].H);
      bottom_up_.emplace_back(l ? B * 4 * layers_[l].H : 0);
    }
  }

  void run() {
    seconds = together<T>([&](Member<T>& member) { Worker(*this, member).run(); });
  }

  at::Tensor z_last;
  double seconds = 0;  // in matrix products

 private:
  Tables& tables_;
  const Problem& problem_;
  std::vector<LayerTables>& layers_;
  const at::Tensor& z_start_;
  std::vector<Packed<T>> U_, W_, V_;
  std::vector<std::vector<T>> recurrent_, bottom_up_;  // products of the rows at hand

  void pack() {
    const int64_t L = problem_.L;
    U_.resize(L);
    W_.resize(L);
    V_.resize(L);
    for (int64_t l = 0; l < L; ++l) {
      U_[l].allocate(layers_[l].H, 4 * layers_[l].H);
      W_[l].allocate(layers_[l].H_below, 4 * layers_[l].H);
      if (l + 1 < L) V_[l].allocate(layers_[l].H_above, 4 * layers_[l].H);
    }
  }

  // What one thread does. All threads keep the books, each for itself: that is cheaper than waiting for one that does.
  // They share products by columns, and everything else by batch rows.
  struct Worker {
    Forward& all;
    Member<T>& member;
    const Problem& problem;
    std::vector<LayerTables>& layers;
    const int64_t L, T_, B;
    const Share rows;
    std::vector<int64_t> count;                 // (L) events so far
    std::vector<std::vector<int32_t>> current;  // (L, B) event of each row
    std::vector<std::vector<char>> v_ready;     // (L, B) whether V h of the layer above is there
    std::vector<char> z, y, y_above;            // z: (B, L); y: (B) the boundaries from below at this step
    std::vector<Event> events;                  // of this layer and step
    std::vector<T> scratch;

    Worker(Forward& all, Member<T>& member)
        : all(all), member(member), problem(all.problem_), layers(all.layers_), L(problem.L), T_(problem.T),
          B(problem.B), rows(problem.B, member.id, member.threads), count(L, B), z(B * L), y(B), y_above(B) {
      int64_t widest = 0;
      for (auto& layer : layers) widest = std::max(widest, layer.H);
      scratch.resize(10 * widest);
      current.assign(L, std::vector<int32_t>(B));
      v_ready.assign(L, std::vector<char>(B, 0));
      for (int64_t b = 0; b < B; ++b)
        for (int64_t l = 0; l < L; ++l) {
          current[l][b] = static_cast<int32_t>(b);
          z[b * L + l] = l + 1 < L && data<T>(all.z_start_)[b * (L - 1) + l] != T(0);
        }
    }

    void run() {
      for (int64_t l = 0; l < L; ++l) {
        member.pack(all.U_[l], layers[l].weights.U, true);
        member.pack(all.W_[l], layers[l].weights.W, true);
        if (l + 1 < L) member.pack(all.V_[l], layers[l].weights.V, true);
        for (int64_t b = rows.begin; b < rows.end; ++b) detector_dots(l, b);
      }
      member.barrier.wait();
      for (int64_t t = 0; t < T_; ++t) {
        for (int64_t b = 0; b < B; ++b) y[b] = t < problem.lengths[b];
        for (int64_t l = 0; l < L; ++l) step(t, l);
      }
      for (int64_t l = 1; l < L && problem.training; ++l) trailing_copies(l);
      if (member.id == 0) finish();
    }

    void step(int64_t t, int64_t l) {
      LayerTables& layer = layers[l];
      const int64_t start = count[l];
      detect_and_list(t, l);
      if (!events.empty()) {
        products(l);
        member.barrier.wait();
        for (size_t m = 0; m < events.size(); ++m)
          if (events[m].row >= rows.begin && events[m].row < rows.end) compute(t, l, start + m, m);
        if (member.id == 0) std::copy(events.begin(), events.end(), layer.events.begin() + start);
        for (size_t m = 0; m < events.size(); ++m) {
          current[l][events[m].row] = static_cast<int32_t>(start + m);
          if (l > 0) v_ready[l - 1][events[m].row] = 0;
        }
        count[l] += events.size();
        member.barrier.wait();
      }
      if (member.id == 0) {
        layer.first[t + 1] = count[l];
        int64_t* index = data<int64_t>(layer.index) + t * B;
        for (int64_t b = 0; b < B; ++b) index[b] = current[l][b];
      }
      std::swap(y, y_above);
    }

    // Which rows have an event, and the boundaries that this layer makes.
    void detect_and_list(int64_t t, int64_t l) {
      LayerTables& layer = layers[l];
      events.clear();
      const bool detects = l + 1 < L;
      const T* b_z = data<T>(layer.weights.b_z);
      for (int64_t b = 0; b < B; ++b) {
        const bool valid = t < problem.lengths[b], flush = z[b * L + l], event = valid && (flush || y[b]);
        const int32_t before = current[l][b], above = detects ? current[l + 1][b] : 0;
        const int32_t below = l ? current[l - 1][b] : static_cast<int32_t>(t * B + b);
        if (event) events.push_back({static_cast<int32_t>(b), static_cast<int32_t>(t), before, above, below, flush, y[b] != 0});
        y_above[b] = 0;
        if (!detects || !valid) continue;
        const int64_t at = (t * B + b) * (L - 1) + l;
        const T* w_z = l ? data<T>(layers[l - 1].w_z) + below : data<T>(all.tables_.x_z) + below;
        const T s_z = data<T>(layer.u_z)[before] + (flush ? data<T>(layers[l + 1].v_z)[above] : T(0)) +
                      (y[b] ? *w_z : T(0)) + *b_z;
        const bool fires = bound(s_z, problem.slope, problem.uniforms ? data<float>(*problem.uniforms) + at : nullptr);
        bool boundary = problem.given ? data<T>(*problem.given)[at] != T(0) : fires && (event || !problem.hold);
        z[b * L + l] = y_above[b] = boundary;
        if (b >= rows.begin && b < rows.end) {
          data<T>(all.tables_.s_z)[at] = s_z;
          data<T>(all.tables_.fires)[at] = fires;
          data<T>(all.tables_.z)[at] = boundary;
        }
      }
    }

    // U h, W h_below and V h_above, for the rows that need them.
    void products(int64_t l) {
      LayerTables& layer = layers[l];
      const int64_t size = 4 * layer.H;
      rows_of([&](size_t m) { return data<T>(layer.h) + events[m].before * layer.H; },
              [&](size_t m) { return all.recurrent_[l].data() + m * size; }, [](size_t) { return true; });
      member.multiply(all.U_[l], false);
      if (l == 0) {
        rows_of([&](size_t m) { return data<T>(problem.x) + events[m].below * problem.input_size; },
                [&](size_t m) { return all.recurrent_[l].data() + m * size; }, [](size_t) { return true; });
        member.multiply(all.W_[l], true);
      } else {
        rows_of([&](size_t m) { return data<T>(layers[l - 1].h) + events[m].below * layers[l - 1].H; },
                [&](size_t m) { return all.bottom_up_[l].data() + m * size; }, [&](size_t m) { return events[m].y; });
        member.multiply(all.W_[l], false);
      }
      if (l + 1 == L) return;
      rows_of([&](size_t m) { return data<T>(layers[l + 1].h) + events[m].above * layers[l + 1].H; },
              [&](size_t m) { return data<T>(layers[l + 1].v) + events[m].above * size; },
              [&](size_t m) { return !v_ready[l][events[m].row] && (events[m].z || problem.training); });
      member.multiply(all.V_[l], false);
      for (auto& event : events)
        if (event.z || problem.training) v_ready[l][event.row] = 1;
    }

    template <typename From, typename To, typename Which>
    void rows_of(From from, To to, Which which) {
      member.clear();
      for (size_t m = 0; m < events.size(); ++m)
        if (which(m)) member.add(from(m), to(m));
    }

    // The state after event e, the m-th of its step.
    void compute(int64_t t, int64_t l, int64_t e, size_t m) {
      LayerTables& layer = layers[l];
      const Event& event = events[m];
      const int64_t H = layer.H;
      T* recurrent = all.recurrent_[l].data() + m * 4 * H;
      if (l > 0 && problem.training) not_copied(l, event.before, t > layer.events[event.before].t + 1 ? recurrent : nullptr);
      T* s = problem.training ? data<T>(layer.gates) + e * 4 * H : scratch.data();
      const T* bottom_up = l && event.y ? all.bottom_up_[l].data() + m * 4 * H : nullptr;
      const T* top_down = event.z ? data<T>(layers[l + 1].v) + event.above * 4 * H : nullptr;
      add(s, recurrent, bottom_up, top_down, 4 * H);
      T* gates = activated(layer, s, problem.training ? data<T>(layer.rstd) + e : scratch.data() + 9 * H);
      const T *f = gates, *i = gates + H, *o = gates + 2 * H, *g = gates + 3 * H;
      const T* c_before = data<T>(layer.c) + event.before * H;
      T *h = data<T>(layer.h) + e * H, *c = data<T>(layer.c) + e * H;
      const T keep = event.z ? T(0) : T(1);
#pragma omp simd
      for (int64_t j = 0; j < H; ++j) c[j] = keep * f[j] * c_before[j] + i[j] * g[j];
      squash(c, data<T>(layer.weights.gain_c), data<T>(layer.weights.bias_c), h, H);
#pragma omp simd
      for (int64_t j = 0; j < H; ++j) h[j] *= o[j];
      detector_dots(l, e);
    }

    static void add(T* s, const T* a, const T* b, const T* c, int64_t n) {
      if (b && c) {
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) s[j] = a[j] + b[j] + c[j];
      } else if (b || c) {
        const T* other = b ? b : c;
#pragma omp simd
        for (int64_t j = 0; j < n; ++j) s[j] = a[j] + other[j];
      } else {
        std::memcpy(s, a, n * sizeof(T));
      }
    }

    // Gates of the pre-activation s: in its place, or with layer normalisation (which leaves x_hat there) in the scratch.
    T* activated(const LayerTables& layer, T* s, T* rstd) {
      const int64_t n = 4 * layer.H;
      const T *b = data<T>(layer.weights.b), *gain = data<T>(layer.weights.gain);
      T* out = s;
      if (gain) {
        *rstd = normalise(s, s, n, kLayerNormEps);
        out = scratch.data() + 4 * layer.H;
        std::memcpy(out, s, n * sizeof(T));
      }
      affine(out, gain, b, n);
      activate(out, layer.H);
      return out;
    }

    // What COPY steps after event e did not do, from r = U h; nothing (null) if there were none.
    void not_copied(int64_t l, int64_t e, const T* r) {
      LayerTables& layer = layers[l];
      const int64_t H = layer.H;
      T* not_h = data<T>(layer.not_h) + e * H;
      if (!r) return zero(not_h, H);
      T *not_flush = data<T>(layer.not_flush) + e * H, *not_update = data<T>(layer.not_update) + e * H;
      const T *h = data<T>(layer.h) + e * H, *c = data<T>(layer.c) + e * H;
      std::memcpy(scratch.data(), r, 4 * H * sizeof(T));
      T rstd;
      const T* gates = activated(layer, scratch.data(), &rstd);
      const T *f = gates, *i = gates + H, *o = gates + 2 * H, *g = gates + 3 * H;
      squash(c, data<T>(layer.weights.gain_c), data<T>(layer.weights.bias_c), not_h, H);
#pragma omp simd
      for (int64_t j = 0; j < H; ++j) {
        not_h[j] = o[j] * not_h[j] - h[j];
        not_flush[j] = i[j] * g[j] - c[j];
        not_update[j] = not_flush[j] + f[j] * c[j];
      }
    }

    // The segments that are still open at the end: their COPY steps have a gradient too.
    void trailing_copies(int64_t l) {
      LayerTables& layer = layers[l];
      events.clear();
      for (int64_t b = 0; b < B; ++b) {
        const int32_t e = current[l][b];
        if (layer.events[e].t < problem.lengths[b] - 1)
          events.push_back({static_cast<int32_t>(b), 0, e, 0, 0, false, false});
        else if (b >= rows.begin && b < rows.end)
          not_copied(l, e, nullptr);
      }
      const int64_t size = 4 * layer.H;
      rows_of([&](size_t m) { return data<T>(layer.h) + events[m].before * layer.H; },
              [&](size_t m) { return all.recurrent_[l].data() + m * size; }, [](size_t) { return true; });
      member.multiply(all.U_[l], false);
      member.barrier.wait();
      for (size_t m = 0; m < events.size(); ++m)
        if (events[m].row >= rows.begin && events[m].row < rows.end)
          not_copied(l, events[m].before, all.recurrent_[l].data() + m * size);
    }

    // h of event e as the detectors see it.
    void detector_dots(int64_t l, int64_t e) {
      LayerTables& layer = layers[l];
      const T* h = data<T>(layer.h) + e * layer.H;
      if (l + 1 < L) {
        data<T>(layer.u_z)[e] = dot(h, data<T>(layer.weights.U_z), layer.H);
        if (l + 2 < L) data<T>(layer.w_z)[e] = dot(h, data<T>(layers[l + 1].weights.W_z), layer.H);
      }
      if (l > 0) data<T>(layer.v_z)[e] = dot(h, data<T>(layers[l - 1].weights.V_z), layer.H);
    }

    void finish() {
      all.z_last = at::empty_like(all.z_start_);
      for (int64_t b = 0; b < B; ++b)
        for (int64_t l = 0; l + 1 < L; ++l) data<T>(all.z_last)[b * (L - 1) + l] = z[b * L + l];
    }
  };
};

// Memory for a table. In pages of 2 MiB where the system has them: in small ones, the first touch of each page takes longer
// than the work that is done on it.
at::Tensor empty_table(int64_t rows, int64_t width, const at::TensorOptions& options) {
  at::Tensor table = at::empty({rows, width}, options);
#if defined(__linux__)
  constexpr uintptr_t kHuge = uintptr_t(1) << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(table.data_ptr()) + kHuge - 1) & ~(kHuge - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(table.data_ptr()) + table.nbytes()) & ~(kHuge - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a wish: may be refused
#endif
  return table;
}

LayerTables allocate(const Problem& problem, std::vector<Weights>& weights, int64_t l, const at::Tensor& h, const at::Tensor& c) {
  LayerTables layer;
  layer.weights = weights[l];
  layer.H = layer.weights.U.size(1);
  layer.H_below = layer.weights.W.size(1);
  layer.H_above = layer.weights.V.defined() ? layer.weights.V.size(1) : 0;
  // Room for an event at every step. Pages that are never written take no memory.
  const int64_t N = problem.B * (problem.T + 1), H = layer.H;
  auto table = [&](int64_t width) { return empty_table(N, width, problem.x.options()); };
  layer.h = table(H);
  layer.c = table(H);
  layer.h.narrow(0, 0, problem.B).copy_(h);
  layer.c.narrow(0, 0, problem.B).copy_(c);
  if (problem.training) layer.gates = table(4 * H);
  if (problem.training && layer.weights.gain.defined()) layer.rstd = table(1);
  if (l > 0) layer.v = table(4 * layer.H_below);
  if (l > 0 && problem.training) {
    layer.not_h = table(H);
    layer.not_flush = table(H);
    layer.not_update = table(H);
  }
  if (l + 1 < problem.L) layer.u_z = table(1);
  if (l + 2 < problem.L) layer.w_z = table(1);
  if (l > 0) layer.v_z = table(1);
  layer.index = at::empty({problem.T, problem.B}, problem.x.options().dtype(at::kLong));
  layer.events.resize(N);
  for (int64_t b = 0; b < problem.B; ++b) layer.events[b] = {static_cast<int32_t>(b), -1, -1, -1, -1, false, false};
  layer.first.assign(problem.T + 1, problem.B);
  return layer;
}

}  // namespace

Weights Weights::from(const std::vector<std::optional<at::Tensor>>& list) {
  auto get = [&](int k) { return list[k] ? list[k]->contiguous() : at::Tensor(); };
  return {get(0), get(1), get(2), get(3), get(4), get(5), get(6), get(7), get(8), get(9), get(10)};
}

ForwardResult forward(Problem problem, std::vector<Weights> weights, const std::vector<at::Tensor>& h,
                      const std::vector<at::Tensor>& c, const at::Tensor& z) {
  ForwardResult result;
  const auto start = std::chrono::steady_clock::now();
  auto tables = std::make_shared<Tables>();
  tables->problem = problem;
  tables->z_start = z;
  for (int64_t l = 0; l < problem.L; ++l) tables->layers.push_back(allocate(problem, weights, l, h[l], c[l]));
  const auto shape = {problem.T, problem.B, problem.L - 1};
  tables->s_z = at::zeros(shape, problem.x.options());
  tables->fires = at::zeros(shape, problem.x.options());
  tables->z = at::zeros(shape, problem.x.options());
  if (problem.L > 1) tables->x_z = at::mv(problem.x.view({-1, problem.input_size}), weights[0].W_z);

  AT_DISPATCH_FLOATING_TYPES(problem.x.scalar_type(), "hmrnn_forward", [&] {
    Forward<scalar_t> pass(*tables, tables->z_start);
    pass.run();
    result.z_last = pass.z_last;
    result.timing.products = pass.seconds;
  });
  for (auto& layer : tables->layers) {
    const int64_t N = layer.first[problem.T];
    layer.events.resize(N);
    result.values.push_back(layer.h.narrow(0, 0, N));
    result.tangents.push_back(layer.not_h.defined() ? layer.not_h.narrow(0, 0, N) : at::Tensor());
    result.index.push_back(layer.index);
    result.c_last.push_back(layer.c.index_select(0, layer.index[problem.T - 1]));
  }
  result.z = tables->z.clone();  // the tables must not hold what holds them
  result.tables = tables;
  result.timing.total = seconds_since(start);
  return result;
}

}  // namespace hmrnn
