#include "packed.h"

namespace hmrnn {

namespace {

// The left operand of a tile: rows that lie anywhere, or columns of kTileRows that lie one behind the other.
template <typename T, int M>
struct Rows {
  const T* row[M];
  explicit Rows(const T* const* a) {
    for (int m = 0; m < M; ++m) row[m] = a[m];
  }
  T at(int m, int64_t k) const { return row[m][k]; }
};

template <typename T, int M>
struct Columns {
  const T* first;
  explicit Columns(const T* a) : first(a) {}
  T at(int m, int64_t k) const { return first[k * kTileRows + m]; }
};

// c[m][0 .. columns) (+)= a[m][0 .. depth) . panel, for M rows.
template <typename T, int M, typename Left>
inline void tile(const Left a, int64_t depth, const T* panel, T* const* c, int64_t columns, bool accumulate) {
  using V = Vector<T>;
  typename V::type sum[M][2] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const auto b0 = V::load(panel), b1 = V::load(panel + V::lanes);
    panel += 2 * V::lanes;
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const T left = a.at(m, k);
      sum[m][0] += left * b0;
      sum[m][1] += left * b1;
    }
  }
  for (int m = 0; m < M; ++m) put<T>(sum[m], c[m], columns, accumulate);
}

template <typename T, template <typename, int> typename Left, int M>
struct Tiles {
  template <typename From>
  static void run(int rows, const From* a, int64_t depth, const T* panel, T* const* c, int64_t columns, bool accumulate) {
    if (rows == M)
      tile<T, M>(Left<T, M>(a), depth, panel, c, columns, accumulate);
    else
      Tiles<T, Left, M - 1>::run(rows, a, depth, panel, c, columns, accumulate);
  }
};

template <typename T, template <typename, int> typename Left>
struct Tiles<T, Left, 0> {
  template <typename From>
  static void run(int, const From*, int64_t, const T*, T* const*, int64_t, bool) {}
};

}  // namespace

template <typename T>
void multiply(const Panels<T>& weights, int64_t begin, int64_t end, const RowList<T>& rows, bool accumulate, RoundedRows& room) {
  if constexpr (std::is_same_v<T, float>)
    if (weights.rounded) {
      room.take(rows.from, weights.depth);
      return room.multiply(weights.pairs(), begin, end, weights.width, rows.to.data(), accumulate);
    }
  constexpr int64_t kDepth = 512;  // this much of a panel and of the rows stays in the cache
  constexpr int kPanel = Panels<T>::kPanel;
  const int64_t count = rows.size();
  const int64_t tiles = (count + kTileRows - 1) / kTileRows;  // of even height: a tile of one row costs nearly a full one
  const T* a[kTileRows];
  T* c[kTileRows];
  for (int64_t k = 0; k < weights.depth; k += kDepth) {
    const int64_t depth = std::min(kDepth, weights.depth - k);
    for (int64_t p = begin; p < end; ++p) {
      const T* panel = weights.panel(p) + k * kPanel;
      const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, weights.width - first);
      for (int64_t i = 0, m = 0; i < tiles; ++i) {
        const int height = static_cast<int>(count * (i + 1) / tiles - m);
        for (int j = 0; j < height; ++j) {
          a[j] = rows.from[m + j] + k;
          c[j] = rows.to[m + j] + first;
        }
        Tiles<T, Rows, kTileRows>::run(height, a, depth, panel, c, columns, accumulate || k > 0);
        m += height;
      }
    }
  }
}

template <typename T>
void multiply_transposed(const std::vector<const T*>& left, const Panels<T>& right, const std::vector<T*>& to, bool accumulate,
                         Buffer<T>& room) {
  constexpr int kPanel = Panels<T>::kPanel;
  const int64_t rows = static_cast<int64_t>(to.size()), tiles = (rows + kTileRows - 1) / kTileRows;
  room.room(right.depth * kTileRows);
  T* c[kTileRows];
  for (int64_t i = 0, m = 0; i < tiles; ++i) {
    const int height = static_cast<int>(rows * (i + 1) / tiles - m);
    for (int64_t k = 0; k < right.depth; ++k) std::memcpy(room.get() + k * kTileRows, left[k] + m, height * sizeof(T));
    for (int64_t p = 0; p < right.count(); ++p) {
      const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, right.width - first);
      for (int j = 0; j < height; ++j) c[j] = to[m + j] + first;
      Tiles<T, Columns, kTileRows>::run(height, room.get(), right.depth, right.panel(p), c, columns, accumulate);
    }
    m += height;
  }
}

template void multiply_transposed<float>(const std::vector<const float*>&, const Panels<float>&, const std::vector<float*>&, bool, Buffer<float>&);
template void multiply_transposed<double>(const std::vector<const double*>&, const Panels<double>&, const std::vector<double*>&, bool, Buffer<double>&);
template void multiply<float>(const Panels<float>&, int64_t, int64_t, const RowList<float>&, bool, RoundedRows&);
template void multiply<double>(const Panels<double>&, int64_t, int64_t, const RowList<double>&, bool, RoundedRows&);

}  // namespace hmrnn
