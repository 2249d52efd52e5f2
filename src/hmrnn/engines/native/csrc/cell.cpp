#include "cell.h"

namespace hmrnn {

namespace {

// f, i, o and g in four blocks of H.
template <typename T>
struct Gates {
  const T *f, *i, *o, *g;
  Gates(const T* s, int64_t H) : f(s), i(s + H), o(s + 2 * H), g(s + 3 * H) {}
};

// The gates of pre-activations s: in their place; or with layer normalisation, which leaves x_hat there, in `room`.
template <typename T>
inline Gates<T> activated(const Weights<T>& w, int64_t H, T* s, T* rstd, T* room) {
  T* out = s;
  if (w.gain) {
    *rstd = normalise(s, s, 4 * H, kLayerNormEps);
    std::memcpy(room, s, 4 * H * sizeof(T));
    out = room;
  }
  affine(out, w.gain, w.b, 4 * H);
  activate(out, H);
  return Gates<T>(out, H);
}

// The gates again, from what is kept of them.
template <typename T>
inline Gates<T> reactivated(const Weights<T>& w, int64_t H, const T* kept, T* room) {
  if (!w.gain) return Gates<T>(kept, H);
  std::memcpy(room, kept, 4 * H * sizeof(T));
  affine(room, w.gain, w.b, 4 * H);
  activate(room, H);
  return Gates<T>(room, H);
}

// From dh, the gradient by h, to that by c: through o*tanh(c), or o*tanh(LN(c) * gain + bias).
template <typename T>
inline void through_squash(const Weights<T>& w, int64_t H, const T* c, const T* o, VectorSums<T>& sums, CellScratch<T>& scratch) {
  T *dh = scratch.dh, *dc = scratch.dc, *squashed = scratch.squashed, *c_hat = scratch.c_hat, rstd = 1;
  if (w.gain_c) {
    rstd = normalise(c, c_hat, H, kLayerNormEps);
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) squashed[j] = tanh_of(c_hat[j] * w.gain_c[j] + w.bias_c[j]);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < H; ++j) squashed[j] = tanh_of(c[j]);
  }
#pragma omp simd
  for (int64_t j = 0; j < H; ++j) dc[j] = dh[j] * o[j] * (1 - squashed[j] * squashed[j]);
  if (w.gain_c) {
    axpy(T(1), dc, sums.bias_c.data(), H);
    normalise_backward(dc, c_hat, w.gain_c, rstd, sums.gain_c.data(), H);
  }
}

}  // namespace

template <typename T>
void cell(const Weights<T>& w, int64_t H, T* s, T* rstd, bool flush, const T* c_before, T* c, T* h, T* room) {
  const Gates<T> gate = activated(w, H, s, rstd, room);
  const T keep = flush ? T(0) : T(1);
#pragma omp simd
  for (int64_t j = 0; j < H; ++j) c[j] = keep * gate.f[j] * c_before[j] + gate.i[j] * gate.g[j];
  squash(c, w.gain_c, w.bias_c, h, H);
#pragma omp simd
  for (int64_t j = 0; j < H; ++j) h[j] *= gate.o[j];
}

template <typename T>
void not_copied(Layer<T>& layer, int64_t e, const T* r, CellScratch<T>& scratch) {
  const int64_t H = layer.H;
  T* not_h = row(layer.not_h, e, H);
  if (!r) return zero(not_h, H);
  T *not_flush = row(layer.not_flush, e, H), *not_update = row(layer.not_update, e, H);
  const T *h = row(layer.h, e, H), *c = row(layer.c, e, H);
  std::memcpy(scratch.s, r, 4 * H * sizeof(T));
  T rstd;
  const Gates<T> gate = activated(layer.w, H, scratch.s, &rstd, scratch.gates);
  squash(c, layer.w.gain_c, layer.w.bias_c, not_h, H);
#pragma omp simd
  for (int64_t j = 0; j < H; ++j) {
    not_h[j] = gate.o[j] * not_h[j] - h[j];
    not_flush[j] = gate.i[j] * gate.g[j] - c[j];
    not_update[j] = not_flush[j] + gate.f[j] * c[j];
  }
}

template <typename T>
Choice<T> cell_backward(Layer<T>& layer, int64_t e, T* dc_run, VectorSums<T>& sums, CellScratch<T>& scratch) {
  const int64_t H = layer.H;
  const Event& event = layer.events[e];
  T* kept = row(layer.gates, e, 4 * H);
  const Gates<T> gate = reactivated(layer.w, H, kept, scratch.gates);
  through_squash(layer.w, H, row(layer.c, e, H), gate.o, sums, scratch);
  const T *h_before = row(layer.h, event.before, H), *c_before = row(layer.c, event.before, H);
  const T *f = gate.f, *i = gate.i, *o = gate.o, *g = gate.g, *dh = scratch.dh, *dc = scratch.dc, *squashed = scratch.squashed;
  T* ds = scratch.ds;
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
  if (layer.w.gain) normalise_backward(ds, kept, layer.w.gain, layer.rstd[e], sums.gain.data(), 4 * H);
  std::memcpy(kept, ds, 4 * H * sizeof(T));
  return {dF, dF + d_keep, dC};
}

template void cell(const Weights<float>&, int64_t, float*, float*, bool, const float*, float*, float*, float*);
template void not_copied(Layer<float>&, int64_t, const float*, CellScratch<float>&);
template Choice<float> cell_backward(Layer<float>&, int64_t, float*, VectorSums<float>&, CellScratch<float>&);
template void cell(const Weights<double>&, int64_t, double*, double*, bool, const double*, double*, double*, double*);
template void not_copied(Layer<double>&, int64_t, const double*, CellScratch<double>&);
template Choice<double> cell_backward(Layer<double>&, int64_t, double*, VectorSums<double>&, CellScratch<double>&);

}  // namespace hmrnn
