// One time step without a gradient, as in generation: the weights are read where they lie, and only those of layers that
// do something.
#include "kernel.h"
#include "pointwise.h"
#include "team.h"

namespace hmrnn {

namespace {

constexpr int64_t kWorthThreads = 1 << 17;  // multiply-adds

template <typename T>
class Step {
 public:
  Step(const StreamInput& in, StreamResult& out) : in_(in), out_(out), L_(in.weights.size()), B_(in.x.size(0)) {}

  void run() {
    y_.assign(B_, 1);
    for (int64_t l = 0; l < L_; ++l) layer(l);
  }

 private:
  struct Event {
    int64_t row;
    bool z, y;
  };

  const StreamInput& in_;
  StreamResult& out_;
  const int64_t L_, B_;
  std::vector<char> y_;  // (B) z[t, l-1]
  std::vector<Event> events_;
  std::vector<T> s_, squashed_;

  void layer(int64_t l) {
    const at::Tensor h_below = l ? out_.h[l - 1] : in_.x;
    const at::Tensor &h = in_.h[l], &c = in_.c[l];
    detect(l, h_below);
    if (events_.empty()) {  // nothing changes: not even a copy
      out_.h.push_back(h);
      out_.c.push_back(c);
      return;
    }
    const bool everyone = static_cast<int64_t>(events_.size()) == B_;
    out_.h.push_back(everyone ? at::empty_like(h) : h.clone());
    out_.c.push_back(everyone ? at::empty_like(c) : c.clone());
    products(l, h_below);
    for (size_t m = 0; m < events_.size(); ++m) advance(l, events_[m], s_.data() + m * 4 * h.size(1));
  }

  // Which rows have an event, and the boundaries that this layer makes: y of the layer above.
  void detect(int64_t l, const at::Tensor& h_below) {
    const Weights& w = in_.weights[l];
    events_.clear();
    for (int64_t b = 0; b < B_; ++b) {
      const bool detects = l + 1 < L_, y = y_[b];
      const bool z = detects && data<T>(in_.z)[b * (L_ - 1) + l] != T(0);
      const bool event = z || y;
      if (event) events_.push_back({b, z, y});
      data<int8_t>(out_.operations)[b * L_ + l] = z ? kFlush : y ? kUpdate : kCopy;
      if (!detects) continue;
      const int64_t at = b * (L_ - 1) + l;
      T s_z = *data<T>(w.b_z) + row_dot(w.U_z, in_.h[l], b);
      if (z) s_z += row_dot(w.V_z, in_.h[l + 1], b);
      if (y) s_z += row_dot(w.W_z, h_below, b);
      const bool fires = bound(s_z, in_.slope, in_.uniforms ? data<float>(*in_.uniforms) + at : nullptr);
      y_[b] = in_.given ? data<T>(*in_.given)[at] != T(0) : fires && (event || !in_.hold);
      data<T>(out_.z)[at] = y_[b];
    }
  }

  static T row_dot(const at::Tensor& weight, const at::Tensor& table, int64_t b) {
    const int64_t n = weight.size(0);
    return dot(data<T>(weight), data<T>(table) + b * n, n);
  }

  void products(int64_t l, const at::Tensor& h_below) {
    const Weights& w = in_.weights[l];
    const int64_t size = w.U.size(0), M = events_.size();
    s_.resize(M * size);
    // Waking threads takes some microseconds, and milliseconds where another process has their core.
    const int threads = M * w.U.numel() < kWorthThreads ? 1 : at::get_num_threads();
#pragma omp parallel num_threads(threads)
    {
      const Share units(size, omp_get_thread_num(), omp_get_num_threads());
      for (int64_t m = 0; m < M; ++m) {
        const Event& event = events_[m];
        T* s = s_.data() + m * size;
        matvec<false>(w.U, in_.h[l], event.row, s, units);
        if (event.y) matvec<true>(w.W, h_below, event.row, s, units);
        if (event.z) matvec<true>(w.V, in_.h[l + 1], event.row, s, units);
      }
    }
  }

  // Four rows of the matrix at a time: one would leave the adders waiting.
  template <bool accumulate>
  static void matvec(const at::Tensor& weight, const at::Tensor& table, int64_t row, T* out, Share units) {
    const int64_t n = weight.size(1);
    const T* h = data<T>(table) + row * n;
    const T* w = data<T>(weight) + units.begin * n;
    int64_t j = units.begin;
    for (; j + 4 <= units.end; j += 4, w += 4 * n) {
      T sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
      for (int64_t k = 0; k < n; ++k) {
        sum0 += w[k] * h[k];
        sum1 += w[n + k] * h[k];
        sum2 += w[2 * n + k] * h[k];
        sum3 += w[3 * n + k] * h[k];
      }
      const T sums[4] = {sum0, sum1, sum2, sum3};
      for (int i = 0; i < 4; ++i) out[j + i] = accumulate ? out[j + i] + sums[i] : sums[i];
    }
    for (; j < units.end; ++j, w += n) out[j] = (accumulate ? out[j] : T(0)) + dot(w, h, n);
  }

  void advance(int64_t l, const Event& event, T* s) {
    const Weights& w = in_.weights[l];
    const int64_t H = w.U.size(1);
    if (w.gain.defined()) normalise(s, s, 4 * H, kLayerNormEps);
    affine(s, data<T>(w.gain), data<T>(w.b), 4 * H);
    activate(s, H);
    const T *f = s, *i = s + H, *o = s + 2 * H, *g = s + 3 * H, *c_before = data<T>(in_.c[l]) + event.row * H;
    T *c = data<T>(out_.c[l]) + event.row * H, *h = data<T>(out_.h[l]) + event.row * H;
    const T keep = event.z ? T(0) : T(1);
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) c[j] = keep * f[j] * c_before[j] + i[j] * g[j];
    squash(c, data<T>(w.gain_c), data<T>(w.bias_c), h, H);
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) h[j] *= o[j];
  }
};

}  // namespace

StreamResult stream(const StreamInput& in) {
  StreamResult out;
  const int64_t B = in.x.size(0), L = in.weights.size();
  out.z = at::empty_like(in.z);
  out.operations = at::empty({B, L}, in.x.options().dtype(at::kChar));
  AT_DISPATCH_FLOATING_TYPES(in.x.scalar_type(), "hmrnn_stream", [&] { Step<scalar_t>(in, out).run(); });
  return out;
}

}  // namespace hmrnn
