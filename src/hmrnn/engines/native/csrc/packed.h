// Matrix products of rows that lie anywhere with weights that are packed once a call.
//
// The weights of a recurrent network are multiplied with a few rows at a time, over and over. A general GEMM rearranges
// its operands at every call; here the weights are rearranged once, and the few rows are read where they lie.
//
// A product has a type T (float or double) and a type P of its operands: T itself, or Bf16, to which operands of float
// are rounded. Sums are of type T. With Bf16, depths are filled up to kDeep with zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
template <typename T, typename P>
class Panels {
 public:
  static constexpr int kPanel = 2 * Vector<T>::lanes;
  static constexpr int kDeep = std::is_same_v<P, Bf16> ? kBf16Depth : 1;

  int64_t depth = 0, width = 0;

  int64_t count() const { return (width + kPanel - 1) / kPanel; }
  int64_t padded() const { return (depth + kDeep - 1) / kDeep * kDeep; }
  const P* panel(int64_t p) const { return reinterpret_cast<const P*>(data_.get()) + p * padded() * kPanel; }
  bool empty() const { return depth == 0; }

  void allocate(int64_t new_depth, int64_t new_width) {
    depth = new_depth;
    width = new_width;
    data_ = Buffer<Element>(count() * padded() / kPair * kPanel);
  }

  // From a matrix stored as (width, depth): for products with its transpose.
  void pack_transposed(const T* w, int64_t begin, int64_t end) {
    Element block[16][16];
    for (int64_t p = begin; p < end; ++p)
      for (int64_t k = 0; k < padded(); k += 16 * kPair)
        for (int64_t j = 0; j < kPanel; j += 16) {
          const int64_t first = p * kPanel + j;
          for (int64_t i = 0; i < 16; ++i)
            for (int64_t d = 0; d < 16; ++d) {
              auto at = [&](int64_t depth_at) {
                return first + i < width && depth_at < depth ? w[(first + i) * depth + depth_at] : T(0);
              };
              block[i][d] = element(at(k + kPair * d), at(k + kPair * d + 1));
            }
          const int64_t rows = std::min<int64_t>(16, (padded() - k) / kPair), columns = std::min<int64_t>(16, kPanel - j);
          Element* out = start(p) + k / kPair * kPanel + j;
          if (rows == 16 && columns == 16) {
            put_transposed(block, out, kPanel);
          } else {
            for (int64_t d = 0; d < rows; ++d)
              for (int64_t i = 0; i < columns; ++i) out[d * kPanel + i] = block[i][d];
          }
        }
  }

  // From rows of length `width`, one for each k.
  template <typename Row>
  void pack_rows(Row row, int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      Element* out = start(p);
      const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, width - first);
      for (int64_t k = 0; k < padded(); k += kPair, out += kPanel) {
        const T* even = k < depth ? row(k) + first : nullptr;
        const T* odd = kPair == 2 && k + 1 < depth ? row(k + 1) + first : nullptr;
        if (columns == kPanel && even && (odd || kPair == 1))
          for (int64_t j = 0; j < kPanel; ++j) out[j] = element(even[j], kPair == 2 ? odd[j] : T(0));
        else
          for (int64_t j = 0; j < kPanel; ++j)
            out[j] = element(even && j < columns ? even[j] : T(0), odd && j < columns ? odd[j] : T(0));
      }
    }
  }

 private:
  static constexpr int kPair = std::is_same_v<P, Bf16> ? 2 : 1;
  using Element = std::conditional_t<kPair == 2, uint32_t, T>;  // what is laid down at once
  Buffer<Element> data_;

  Element* start(int64_t p) { return data_.get() + p * padded() / kPair * kPanel; }

  static Element element(T first, T second) {
    if constexpr (kPair == 2)
      return rounded_pair(first, second);
    else
      return first;
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

// Rows `to` (+)= rows `from` . weights, for the panels [begin, end): threads share a product by panels.
template <typename T>
void multiply(const Panels<T, T>& weights, int64_t begin, int64_t end, const RowList<T>& rows, bool accumulate, RoundedRows&);

// The same with operands in bfloat16: the rows are rounded first.
inline void multiply(const Panels<float, Bf16>& weights, int64_t begin, int64_t end, const RowList<float>& rows, bool accumulate,
                     RoundedRows& rounded) {
  rounded.take(rows.from, weights.depth);
  rounded.multiply(weights.panel(0), begin, end, weights.width, rows.to.data(), accumulate);
}

}  // namespace hmrnn
