// Products with operands in bfloat16 and sums in float32, by one of three kernels:
//
//   amx    tiles of 16 x 16 sums (Intel, from Sapphire Rapids on)
//   dot    AVX512-BF16: a sum of two products in each lane. Twice as fast as float32 on AMD; on Intel it is slower.
//   widen  operands are made float32 again: any processor, as fast as float32
#pragma once

#include <cstdint>
#include <vector>

#include "memory.h"
#include "vectors.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__) && defined(__linux__)
#define HMRNN_AMX 1
#endif

namespace hmrnn {

constexpr int kBf16Depth = 32;  // depths are multiples of it: the depth of an AMX tile
constexpr int kBlockRows = 16;  // and its height

enum class Bf16Kernel : int { kWiden = 0, kDot = 1, kAmx = 2 };

// The kernel in use. At first the fastest that this processor has.
Bf16Kernel& bf16_kernel();
bool bf16_has(Bf16Kernel kernel);

// What is done for M rows of a block of 16 and one panel: c[m][0 .. columns) (+)= a[m] . panel.
template <int M, bool kDot>
inline void bf16_tile(const Bf16* a, int64_t depth, const Bf16* panel, float* const* c, int64_t columns, bool accumulate);

// Rows in bfloat16: [row / 16][depth / 32][row % 16][depth % 32].
class RoundedRows {
 public:
  // Rounds rows of float32.
  void take(const std::vector<const float*>& rows, int64_t depth) {
    allocate(static_cast<int64_t>(rows.size()), depth);
    for (int64_t m = 0; m < rows_; ++m) {
      const float* from = rows[m];
      Bf16* to = row(m);
      for (int64_t k = 0; k < depth_; k += kBf16Depth, to += kBlockRows * kBf16Depth) {
        if (k + kBf16Depth <= depth)
          for (int j = 0; j < kBf16Depth; ++j) to[j] = Bf16::round(from[k + j]);
        else
          for (int j = 0; j < kBf16Depth; ++j) to[j] = k + j < depth ? Bf16::round(from[k + j]) : Bf16{0};
      }
    }
  }

  // Rounds the columns [begin, end) of rows of float32, as rows.
  template <typename Row>
  void take_transposed(Row row_of, int64_t depth, int64_t begin, int64_t end) {
    allocate(end - begin, depth);
    for (int64_t k = 0; k < depth_; ++k) {
      const float* from = k < depth ? row_of(k) + begin : nullptr;
      Bf16* to = data_.get() + k / kBf16Depth * kBlockRows * kBf16Depth + k % kBf16Depth;
      for (int64_t m = 0; m < rows_; ++m)
        to[m / kBlockRows * kBlockRows * depth_ + m % kBlockRows * kBf16Depth] = from ? Bf16::round(from[m]) : Bf16{0};
    }
  }

  // Rows `to` (+)= these rows . weights, for panels of two vectors in width. `panels` is the first of them.
  void multiply(const Bf16* panels, int64_t begin, int64_t end, int64_t width, float* const* to, bool accumulate) const;

 private:
  int64_t rows_ = 0, depth_ = 0, room_ = 0;
  Buffer<Bf16> data_;

  Bf16* row(int64_t m) const { return data_.get() + m / kBlockRows * kBlockRows * depth_ + m % kBlockRows * kBf16Depth; }

  void allocate(int64_t rows, int64_t depth) {
    rows_ = rows;
    depth_ = (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth;
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    const int64_t needed = blocks * kBlockRows * depth_;
    if (needed > room_) {
      data_ = Buffer<Bf16>(needed);
      room_ = needed;
    }
    // A tile multiplies all rows of a block: those that there are not must hold numbers, whichever.
    if (rows % kBlockRows)
      for (int64_t k = 0; k < depth_; k += kBf16Depth)
        std::memset(static_cast<void*>(row(rows) + k * kBlockRows), 0, (kBlockRows - rows % kBlockRows) * kBf16Depth * sizeof(Bf16));
  }
};

}  // namespace hmrnn
