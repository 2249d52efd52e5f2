// What is done element by element: gates, layer normalisation, dot products. Loops that the compiler turns into vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "vectors.h"

namespace hmrnn {

constexpr double kLayerNormEps = 1e-5;

// exp(x) = scale * (1 + rest), scale = 2^n, rest = exp(r) - 1 for |r| <= ln(2)/2. Adding `magic` rounds to a whole number
// and leaves it in the low bits. libm's exp is a call, which the compiler can't turn into a vector. NaN stays NaN.
template <typename T>
struct Exponential {
  T scale, rest;
};

inline Exponential<float> exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f, shifted = x * 1.44269504f + magic, n = shifted - magic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  return {bits<float>((bits<int32_t>(shifted) + 127) << 23), p * r};
}

inline Exponential<double> exponential(double x) {
  x = x < -700.0 ? -700.0 : x;
  x = x > 700.0 ? 700.0 : x;
  const double magic = 6755399441055744.0, shifted = x * 1.4426950408889634 + magic, n = shifted - magic;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  return {bits<double>((bits<int64_t>(shifted) + 1023) << 52), p * r};
}

template <typename T>
inline T sigmoid(T x) {
  const auto e = exponential(-x);
  return T(1) / (T(1) + (e.scale + e.scale * e.rest));
}

// tanh(x) = m / (m + 2), m = exp(2x) - 1: put together so that nothing cancels where x is small.
template <typename T>
inline T tanh_of(T x) {
  const auto e = exponential(T(2) * x);
  const T m = e.scale * e.rest + (e.scale - T(1));
  return m / (m + T(2));
}

template <typename T>
inline T dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += a[j] * b[j];
  return sum;
}

// y += alpha * x
template <typename T>
inline void axpy(T alpha, const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] += alpha * x[j];
}

// y = a * x, element by element
template <typename T>
inline void multiplied(const T* a, const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] = a[j] * x[j];
}

// y += a * x, element by element
template <typename T>
inline void add_multiplied(const T* a, const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) y[j] += a[j] * x[j];
}

template <typename T>
inline void zero(T* x, int64_t n) {
  std::memset(x, 0, n * sizeof(T));
}

struct Moments {
  double mean, rstd;
};

// Numbers whose squares overflow have no variance: rstd is NaN then, and not the 0 that would make finite numbers of them.
template <typename T>
inline Moments moments(const T* x, int64_t n, double eps) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < n; ++j) sum += x[j];
  const T mean = sum / n;
  T square = 0;
#pragma omp simd reduction(+ : square)
  for (int64_t j = 0; j < n; ++j) square += (x[j] - mean) * (x[j] - mean);
  const double variance = std::isfinite(square) ? static_cast<double>(square / n) : std::numeric_limits<double>::quiet_NaN();
  return {static_cast<double>(mean), 1.0 / std::sqrt(variance + eps)};
}

// x -> (x - mean) * rstd; returns rstd
template <typename T>
inline T normalise(const T* x, T* x_hat, int64_t n, double eps) {
  const Moments m = moments(x, n, eps);
  const T mean = static_cast<T>(m.mean), rstd = static_cast<T>(m.rstd);
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) x_hat[j] = (x[j] - mean) * rstd;
  return rstd;
}

// x -> gain * x + bias; a gain of null stands for one
template <typename T>
inline void affine(T* x, const T* gain, const T* bias, int64_t n) {
  if (gain) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) x[j] = x[j] * gain[j] + bias[j];
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) x[j] += bias[j];
  }
}

// out = tanh(c), or with a gain tanh(LN(c) * gain + bias)
template <typename T>
inline void squash(const T* c, const T* gain, const T* bias, T* out, int64_t n) {
  if (gain) {
    normalise(c, out, n, kLayerNormEps);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = tanh_of(out[j] * gain[j] + bias[j]);
  } else {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) out[j] = tanh_of(c[j]);
  }
}

// Whether a detector fires. `uniform` is null for the step function. One that sees NaN does, and the layer above sees it.
template <typename T>
inline bool bound(T s_z, double slope, const float* uniform) {
  const T a_s = static_cast<T>(slope) * s_z;
  const T z_tilde = a_s <= -1 ? T(0) : a_s < 1 ? (a_s + 1) / 2 : T(1);
  return uniform ? static_cast<T>(*uniform) < z_tilde : z_tilde > T(0.5);
}

// Through layer normalisation: dy, the gradient by gain * x_hat + bias, becomes that by x. dgain += dy * x_hat.
template <typename T>
inline void normalise_backward(T* dy, const T* x_hat, const T* gain, T rstd, T* dgain, int64_t n) {
  T mean = 0, correlation = 0;
#pragma omp simd reduction(+ : mean, correlation)
  for (int64_t j = 0; j < n; ++j) {
    const T scaled = dy[j] * gain[j];
    dgain[j] += dy[j] * x_hat[j];
    mean += scaled;
    correlation += scaled * x_hat[j];
  }
  mean /= n;
  correlation /= n;
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) dy[j] = rstd * (dy[j] * gain[j] - mean - x_hat[j] * correlation);
}

// The gates of a pre-activation, in place: (f, i, o, g), four blocks of n.
template <typename T>
inline void activate(T* s, int64_t n) {
#pragma omp simd
  for (int64_t j = 0; j < 3 * n; ++j) s[j] = sigmoid(s[j]);
#pragma omp simd
  for (int64_t j = 3 * n; j < 4 * n; ++j) s[j] = tanh_of(s[j]);
}

}  // namespace hmrnn
