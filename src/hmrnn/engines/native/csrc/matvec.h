// A matrix times one vector. The weights are read once and row by row: in place, or from a copy in bfloat16.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "memory.h"
#include "pointwise.h"
#include "vectors.h"

namespace hmrnn {

// A vector as a matrix of type P multiplies it.
template <typename T, typename P>
struct Multiplied;

template <typename T>
struct Multiplied<T, T> {
  std::vector<T> values;
  Multiplied(const T* x, int64_t n) : values(x, x + n) {}
};

template <>
struct Multiplied<float, Bf16> {
  std::vector<float> even, odd;  // rounded; filled up with zeros to whole vectors

  static int64_t pairs(int64_t n) {
    constexpr int64_t lanes = Vector<float>::lanes;
    return ((n + 1) / 2 + lanes - 1) / lanes * lanes;
  }

  Multiplied(const float* x, int64_t n) : even(pairs(n)), odd(pairs(n)) {
    for (int64_t k = 0; k < n; ++k) (k % 2 ? odd : even)[k / 2] = bits<float>(rounded(x[k]) & 0xffff0000u);
  }
};

// (units, inputs)
template <typename T, typename P>
class Matrix;

template <typename T>
class Matrix<T, T> {
 public:
  Matrix() = default;
  Matrix(const void* w, int64_t, int64_t inputs) : w_(static_cast<const T*>(w)), n_(inputs) {}
  int64_t inputs() const { return n_; }

  // out[j - begin] (+)= row j . x, four rows at a time: one would leave the adders waiting.
  void multiply(const Multiplied<T, T>& x, int64_t begin, int64_t end, T* out, bool accumulate) const {
    const T *h = x.values.data(), *w = w_ + begin * n_;
    int64_t j = 0;
    for (; j + 4 <= end - begin; j += 4, w += 4 * n_) {
      T sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
      for (int64_t k = 0; k < n_; ++k) {
        sum0 += w[k] * h[k];
        sum1 += w[n_ + k] * h[k];
        sum2 += w[2 * n_ + k] * h[k];
        sum3 += w[3 * n_ + k] * h[k];
      }
      const T sums[4] = {sum0, sum1, sum2, sum3};
      for (int i = 0; i < 4; ++i) out[j + i] = accumulate ? out[j + i] + sums[i] : sums[i];
    }
    for (; j < end - begin; ++j, w += n_) out[j] = (accumulate ? out[j] : T(0)) + dot(w, h, n_);
  }

 private:
  const T* w_ = nullptr;
  int64_t n_ = 0;
};

template <>
class Matrix<float, Bf16> {
 public:
  Matrix() = default;
  Matrix(const void* w, int64_t units, int64_t inputs)
      : n_(inputs), pairs_(Multiplied<float, Bf16>::pairs(inputs)), data_(w ? units * pairs_ : 0) {
    const float* from = static_cast<const float*>(w);
    for (int64_t j = 0; w && j < units; ++j, from += n_)
      for (int64_t k = 0; k < pairs_; ++k)
        data_.get()[j * pairs_ + k] = rounded_pair(2 * k < n_ ? from[2 * k] : 0.0f, 2 * k + 1 < n_ ? from[2 * k + 1] : 0.0f);
  }
  int64_t inputs() const { return n_; }

  void multiply(const Multiplied<float, Bf16>& x, int64_t begin, int64_t end, float* out, bool accumulate) const {
    int64_t j = begin;
    for (; j + 4 <= end; j += 4) rows<4>(x, j, out + j - begin, accumulate);
    for (; j < end; ++j) rows<1>(x, j, out + j - begin, accumulate);
  }

 private:
  int64_t n_ = 0, pairs_ = 0;
  Buffer<uint32_t> data_;
  static constexpr int64_t kAhead = 1024;  // numbers: a page, at which the processor's own prefetching stops

  template <int M>
  void rows(const Multiplied<float, Bf16>& x, int64_t j, float* out, bool accumulate) const {
    using F = Vector<float>;
    using U = Vector<uint32_t>;
    F::type sum[M][2] = {};
    const uint32_t* w = data_.get() + j * pairs_;
    for (int64_t k = 0; k < pairs_; k += F::lanes) {
      const F::type even = F::load(x.even.data() + k), odd = F::load(x.odd.data() + k);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const U::type both = U::load(w + m * pairs_ + k);
        __builtin_prefetch(w + m * pairs_ + k + kAhead);
        sum[m][0] += even * bits<F::type>(both << 16);
        sum[m][1] += odd * bits<F::type>(both & 0xffff0000u);
      }
    }
    for (int m = 0; m < M; ++m) {
      const F::type both = sum[m][0] + sum[m][1];
      float total = 0;
      for (int i = 0; i < F::lanes; ++i) total += both[i];
      out[m] = accumulate ? out[m] + total : total;
    }
  }
};

}  // namespace hmrnn
