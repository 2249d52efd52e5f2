// Matrix products of gathered rows with weights that are packed once a call.
//
// The weights of a recurrent network are multiplied with a few rows at a time, over and over. A general GEMM rearranges
// its operands at every call; here the weights are rearranged once, and the few rows are read where they lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace hmrnn {

// A tile of kTileRows x (2 vectors) of the result stays in registers.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;
#else
constexpr int kVectorBytes = 16, kTileRows = 6;
#endif

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(kVectorBytes)));
  typedef T unaligned __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
  static constexpr int lanes = kVectorBytes / sizeof(T);
  static type load(const T* p) { return *reinterpret_cast<const unaligned*>(p); }
  static void store(T* p, type v) { *reinterpret_cast<unaligned*>(p) = v; }
};

// A (depth, width) matrix in panels of kPanel columns: within a panel row after row, the last panel filled up with zeros.
template <typename T>
class Packed {
 public:
  static constexpr int kPanel = 2 * Vector<T>::lanes;

  int64_t depth = 0, width = 0;

  int64_t panels() const { return (width + kPanel - 1) / kPanel; }
  const T* panel(int64_t p) const { return data_.data() + p * depth * kPanel; }

  void allocate(int64_t new_depth, int64_t new_width) {
    depth = new_depth;
    width = new_width;
    data_.resize(panels() * depth * kPanel);
  }

  // From a matrix stored as (width, depth): for products with its transpose.
  void pack_transposed(const T* w, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      T* out = data_.data() + p * depth * kPanel;
      for (int j = 0; j < kPanel; ++j) {
        const int64_t column = p * kPanel + j;
        for (int64_t k = 0; k < depth; ++k) out[k * kPanel + j] = column < width ? w[column * depth + k] : T(0);
      }
    }
  }

  // From a matrix stored as (depth, width).
  void pack(const T* w, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      T* out = data_.data() + p * depth * kPanel;
      const int64_t columns = std::min<int64_t>(kPanel, width - p * kPanel);
      for (int64_t k = 0; k < depth; ++k) {
        std::memcpy(out + k * kPanel, w + k * width + p * kPanel, columns * sizeof(T));
        for (int64_t j = columns; j < kPanel; ++j) out[k * kPanel + j] = T(0);
      }
    }
  }

 private:
  std::vector<T> data_;
};

// c[m][0 .. columns) (+)= a[m][0 .. depth) . panel, for M rows.
template <typename T, int M>
inline void tile(const T* const* a, int64_t depth, const T* panel, T* const* c, int64_t columns, bool accumulate) {
  using V = Vector<T>;
  typename V::type sum[M][2] = {};
  const T* row[M];
  for (int m = 0; m < M; ++m) row[m] = a[m];
  for (int64_t k = 0; k < depth; ++k) {
    const auto b0 = V::load(panel), b1 = V::load(panel + V::lanes);
    panel += 2 * V::lanes;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      sum[m][0] += row[m][k] * b0;
      sum[m][1] += row[m][k] * b1;
    }
  }
  for (int m = 0; m < M; ++m) {
    if (columns == 2 * V::lanes) {
      V::store(c[m], accumulate ? V::load(c[m]) + sum[m][0] : sum[m][0]);
      V::store(c[m] + V::lanes, accumulate ? V::load(c[m] + V::lanes) + sum[m][1] : sum[m][1]);
    } else {
      for (int64_t j = 0; j < columns; ++j) {
        const T value = sum[m][j / V::lanes][j % V::lanes];
        c[m][j] = accumulate ? c[m][j] + value : value;
      }
    }
  }
}

template <typename T, int M>
struct Tiles {
  static void run(int rows, const T* const* a, int64_t depth, const T* panel, T* const* c, int64_t columns, bool accumulate) {
    if (rows == M)
      tile<T, M>(a, depth, panel, c, columns, accumulate);
    else
      Tiles<T, M - 1>::run(rows, a, depth, panel, c, columns, accumulate);
  }
};

template <typename T>
struct Tiles<T, 0> {
  static void run(int, const T* const*, int64_t, const T*, T* const*, int64_t, bool) {}
};

// Rows c[m] (+)= rows a[m] . weights, for the panels [begin, end): threads share a product by panels.
template <typename T>
void multiply(const Packed<T>& weights, int64_t begin, int64_t end, int64_t rows, const T* const* a, T* const* c, bool accumulate) {
  constexpr int64_t kDepth = 512;  // this much of a panel and of the rows stays in the cache
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;  // of even height: a tile of one row costs nearly a full one
  const T* a_block[kTileRows];
  T* c_block[kTileRows];
  for (int64_t k = 0; k < weights.depth; k += kDepth) {
    const int64_t depth = std::min(kDepth, weights.depth - k);
    for (int64_t p = begin; p < end; ++p) {
      const T* panel = weights.panel(p) + k * Packed<T>::kPanel;
      const int64_t first = p * Packed<T>::kPanel, columns = std::min<int64_t>(Packed<T>::kPanel, weights.width - first);
      for (int64_t i_tile = 0, m = 0; i_tile < tiles; ++i_tile) {
        const int count = static_cast<int>(rows * (i_tile + 1) / tiles - m);
        for (int i = 0; i < count; ++i) {
          a_block[i] = a[m + i] + k;
          c_block[i] = c[m + i] + first;
        }
        Tiles<T, kTileRows>::run(count, a_block, depth, panel, c_block, columns, accumulate || k > 0);
        m += count;
      }
    }
  }
}

}  // namespace hmrnn
