// Matrix products of rows that lie anywhere with weights that are packed once a call.
//
// The weights of a recurrent network are multiplied with a few rows at a time, over and over. A general GEMM rearranges
// its operands at every call; here the weights are rearranged once, and the few rows are read where they lie.
//
// Sums are of type T, float or double. Operands are too, or those of float are rounded to bfloat16: then depths are filled
// up with zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "bfloat16.h"
#include "memory.h"
#include "vectors.h"

namespace hmrnn {

// Rows that are multiplied, and where their products go.
template <typename T>
struct RowList {
  std::vector<const T*> from;
  std::vector<T*> to;

  void reserve(int64_t rows) {
    from.reserve(rows);
    to.reserve(rows);
  }
  void clear() {
    from.clear();
    to.clear();
  }
  void add(const T* a, T* c) {
    from.push_back(a);
    to.push_back(c);
  }
  int64_t size() const { return static_cast<int64_t>(from.size()); }
};

// A (depth, width) matrix in panels of kPanel columns: within a panel row after row (in bfloat16 pair of rows after pair
// of rows), the last panel filled up with zeros.
template <typename T>
class Panels {
 public:
  static constexpr int kPanel = 2 * Vector<T>::lanes;

  int64_t depth = 0, width = 0;
  bool rounded = false;

  int64_t count() const { return (width + kPanel - 1) / kPanel; }
  int64_t padded() const { return rounded ? (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth : depth; }
  const T* panel(int64_t p) const { return whole_.get() + p * padded() * kPanel; }
  const uint32_t* pairs() const { return pairs_.get(); }

  void allocate(int64_t new_depth, int64_t new_width, bool in_bfloat16) {
    depth = new_depth;
    width = new_width;
    rounded = in_bfloat16 && std::is_same_v<T, float>;
    const int64_t size = count() * padded() * kPanel;
    if (rounded)
      pairs_.room(size / 2);
    else
      whole_.room(size);
  }

  // From a matrix stored as (width, depth): for products with its transpose. In blocks of 16 x 16, so that whole lines of
  // the cache are read and written.
  void pack_transposed(const T* w, int64_t begin, int64_t end) {
    if (rounded)
      fill_transposed(pairs_.get(), padded() / 2, begin, end, [&](int64_t column, int64_t pair, uint32_t* block) {
        if constexpr (std::is_same_v<T, float>) {
          float padded[32];
          round_neighbours(numbers(w, column, 2 * pair, padded), block);
        }
      });
    else
      fill_transposed(whole_.get(), depth, begin, end, [&](int64_t column, int64_t k, T* block) {
        T padded[16];
        std::memcpy(block, numbers(w, column, k, padded), sizeof(padded));
      });
  }

  // From rows of length `width`, one for each k; null stands for zeros. Row after row, as they lie in memory.
  template <typename Row>
  void pack_rows(Row row, int64_t begin, int64_t end) {
    for (int64_t k = 0; k < padded(); k += rounded ? 2 : 1) {
      const T *even = k < depth ? row(k) : nullptr, *odd = rounded && k + 1 < depth ? row(k + 1) : nullptr;
      for (int64_t p = begin; p < end; ++p) {
        const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, width - first);
        if (rounded)
          pair_rows(even ? even + first : nullptr, odd ? odd + first : nullptr, columns, pairs_.get() + (p * padded() + k) / 2 * kPanel);
        else
          put_row(even ? even + first : nullptr, columns, whole_.get() + (p * depth + k) * kPanel);
      }
    }
  }

 private:
  Buffer<T> whole_;
  Buffer<uint32_t> pairs_;

  static void put_row(const T* from, int64_t columns, T* out) {
    if (from && columns == kPanel) {
      std::memcpy(out, from, kPanel * sizeof(T));
    } else {
      std::fill_n(out, kPanel, T(0));
      if (from) std::copy_n(from, columns, out);
    }
  }

  // A row that there is not (null) is zero.
  static void pair_rows(const T* even, const T* odd, int64_t columns, uint32_t* out) {
    if constexpr (std::is_same_v<T, float>)
      if (even && odd && columns == kPanel && kPanel % 16 == 0) {
        for (int64_t j = 0; j < kPanel; j += 16) round_rows(even + j, odd + j, out + j);
        return;
      }
    for (int64_t j = 0; j < kPanel; ++j) out[j] = rounded_pair(even && j < columns ? even[j] : 0, odd && j < columns ? odd[j] : 0);
  }

  // Numbers of a column from k on: where they lie; or, where some of them do not exist, in `padded`, with zeros for those.
  template <size_t N>
  const T* numbers(const T* w, int64_t column, int64_t k, T (&padded)[N]) const {
    const int64_t count = column < width ? std::clamp<int64_t>(depth - k, 0, N) : 0;
    if (count == N) return w + column * depth + k;
    std::fill_n(padded, N, T(0));
    if (count) std::copy_n(w + column * depth + k, count, padded);
    return padded;
  }

  template <typename Element, typename Fill>
  static void fill_transposed(Element* out, int64_t rows, int64_t begin, int64_t end, Fill fill) {
    alignas(64) Element block[16][16];
    for (int64_t p = begin; p < end; ++p)
      for (int64_t k = 0; k < rows; k += 16)
        for (int64_t j = 0; j < kPanel; j += 16) {
          for (int64_t i = 0; i < 16; ++i) fill(p * kPanel + j + i, k, block[i]);
          Element* to = out + (p * rows + k) * kPanel + j;
          if (rows - k >= 16 && kPanel - j >= 16)
            put_transposed(block, to, kPanel);
          else
            for (int64_t d = 0; d < std::min<int64_t>(16, rows - k); ++d)
              for (int64_t i = 0; i < std::min<int64_t>(16, kPanel - j); ++i) to[d * kPanel + i] = block[i][d];
        }
  }
};

// c[m][0 .. columns) (+)= sum[m], for two vectors of a tile.
template <typename T>
inline void put(const typename Vector<T>::type (&sum)[2], T* c, int64_t columns, bool accumulate) {
  using V = Vector<T>;
  if (columns == 2 * V::lanes) {
    V::store(c, accumulate ? V::load(c) + sum[0] : sum[0]);
    V::store(c + V::lanes, accumulate ? V::load(c + V::lanes) + sum[1] : sum[1]);
  } else {
    for (int64_t j = 0; j < columns; ++j) {
      const T value = sum[j / V::lanes][j % V::lanes];
      c[j] = accumulate ? c[j] + value : value;
    }
  }
}

// Rows `to` (+)= rows `from` . weights, for the panels [begin, end): threads share a product by panels. `room` is for the
// rows in bfloat16.
template <typename T>
void multiply(const Panels<T>& weights, int64_t begin, int64_t end, const RowList<T>& rows, bool accumulate, RoundedRows& room);

// Rows `to` (+)= left^T . right, where left[k] is a row of numbers, one for each row of the result.
template <typename T>
void multiply_transposed(const std::vector<const T*>& left, const Panels<T>& right, const std::vector<T*>& to, bool accumulate,
                         Buffer<T>& room);

}  // namespace hmrnn
