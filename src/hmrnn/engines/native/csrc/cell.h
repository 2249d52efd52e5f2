// The cell of a layer: its state after an event, what a COPY step after it did not do, and the gradients of both.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "pointwise.h"
#include "tables.h"

namespace hmrnn {

// Room for the numbers of one cell.
template <typename T>
class CellScratch {
 public:
  T *s, *gates, *ds;                         // 4H each
  T *dh, *dc, *squashed, *c_hat;             // H each

  explicit CellScratch(int64_t widest) : room_(16 * widest) {
    T* next = room_.data();
    for (T** wide : {&s, &gates, &ds}) next = (*wide = next) + 4 * widest;
    for (T** narrow : {&dh, &dc, &squashed, &c_hat}) next = (*narrow = next) + widest;
  }

 private:
  std::vector<T> room_;
};

// s = a + b + c; what is null is zero.
template <typename T>
inline void add_up(T* s, const T* a, const T* b, const T* c, int64_t n) {
  if (b && c) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) s[j] = a[j] + b[j] + c[j];
  } else if (b || c) {
    const T* other = b ? b : c;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) s[j] = a[j] + other[j];
  } else if (s != a) {
    std::memcpy(s, a, n * sizeof(T));
  }
}

// c and h after an event with pre-activations s. `flush`: z[t-1, l].
template <typename T>
void cell(const Weights<T>& w, int64_t H, T* s, T* rstd, bool flush, const T* c_before, T* c, T* h, T* room);

// What COPY steps after event e did not do, from r = U h; nothing (null) if there were none.
template <typename T>
void not_copied(Layer<T>& layer, int64_t e, const T* r, CellScratch<T>& scratch);

// Gradients of a layer's vectors, as one thread sums them up.
template <typename T>
struct VectorSums {
  std::vector<T> b, gain, gain_c, bias_c;
  explicit VectorSums(int64_t H) : b(4 * H), gain(4 * H), gain_c(H), bias_c(H) {}
};

// Gradients by the coefficients of FLUSH, UPDATE and COPY.
template <typename T>
struct Choice {
  T flush, update, copy;
};

// The LSTM's algebra, for event e. `scratch.dh` is the gradient by its h, and dc_run that by its c from later uses, which
// becomes that by c of the event before. Leaves ds where the gates were.
template <typename T>
Choice<T> cell_backward(Layer<T>& layer, int64_t e, T* dc_run, VectorSums<T>& sums, CellScratch<T>& scratch);

}  // namespace hmrnn
