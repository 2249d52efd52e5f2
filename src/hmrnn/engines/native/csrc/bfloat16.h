// Products with operands in bfloat16 and sums in float32, by one of three kernels:
//
//   amx    tiles of 16 x 16 sums (Intel, from Sapphire Rapids on)
//   dot    AVX512-BF16: a sum of two products in each lane. Twice as fast as float32 on AMD; on Intel it is slower.
//   widen  operands are made float32 again: any processor, as fast as float32
#pragma once

#include <algorithm>
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

// Rows in bfloat16: [row / 16][depth / 32][row % 16][depth % 32].
class RoundedRows {
 public:
  void reserve(int64_t rows, int64_t depth) { allocate(rows, depth); }

  // Rounds rows of float32.
  void take(const std::vector<const float*>& rows, int64_t depth) {
    allocate(static_cast<int64_t>(rows.size()), depth);
    for (int64_t m = 0; m < rows_; ++m)
      for (int64_t k = 0; k < depth_; k += kBf16Depth) {
        uint32_t* to = pairs(m, k);
        const float* from = rows[m] + k;
        const int64_t count = std::min<int64_t>(kBf16Depth, depth - k);
        if (count == kBf16Depth)
#pragma omp simd
          for (int j = 0; j < kBf16Depth / 2; ++j) to[j] = rounded_pair(from[2 * j], from[2 * j + 1]);
        else
          for (int j = 0; j < kBf16Depth / 2; ++j)
            to[j] = rounded_pair(2 * j < count ? from[2 * j] : 0.0f, 2 * j + 1 < count ? from[2 * j + 1] : 0.0f);
      }
  }

  // Rounds the columns [begin, end) of rows of float32, as rows.
  template <typename Row>
  void take_transposed(Row row_of, int64_t depth, int64_t begin, int64_t end) {
    allocate(end - begin, depth);
    uint32_t block[kBf16Depth / 2][kBlockRows];  // of pairs
    for (int64_t k = 0; k < depth_; k += kBf16Depth)
      for (int64_t m = 0; m < rows_; m += kBlockRows) {
        const int64_t count = std::min<int64_t>(kBlockRows, rows_ - m);
        for (int pair = 0; pair < kBf16Depth / 2; ++pair) {
          const int64_t first = k + 2 * pair;
          const float* even = first < depth ? row_of(first) + begin + m : nullptr;
          const float* odd = first + 1 < depth ? row_of(first + 1) + begin + m : nullptr;
          if (odd && count == kBlockRows)
#pragma omp simd
            for (int j = 0; j < kBlockRows; ++j) block[pair][j] = rounded_pair(even[j], odd[j]);
          else
            for (int j = 0; j < kBlockRows; ++j)
              block[pair][j] = rounded_pair(even && j < count ? even[j] : 0.0f, odd && j < count ? odd[j] : 0.0f);
        }
        put_transposed(block, pairs(m, k), kBf16Depth / 2);
      }
  }

  // Rows `to` (+)= these rows . weights, for panels of two vectors in width. `panels` is the first of them.
  void multiply(const uint32_t* panels, int64_t begin, int64_t end, int64_t width, float* const* to, bool accumulate) const;

 private:
  int64_t rows_ = 0, depth_ = 0;
  Buffer<uint32_t> data_;  // in pairs

  // Of row m, from depth k on: 32 numbers.
  uint32_t* pairs(int64_t m, int64_t k) const {
    return data_.get() + (m / kBlockRows * kBlockRows * depth_ + k * kBlockRows + m % kBlockRows * kBf16Depth) / 2;
  }

  void allocate(int64_t rows, int64_t depth) {
    rows_ = rows;
    depth_ = (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth;
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    data_.room(blocks * kBlockRows * depth_ / 2);
    // A tile multiplies all rows of a block: those that there are not must hold numbers, whichever.
    if (rows % kBlockRows)
      for (int64_t k = 0; k < depth_; k += kBf16Depth)
        std::memset(pairs(rows, k), 0, (kBlockRows - rows % kBlockRows) * kBf16Depth * sizeof(Bf16));
  }
};

}  // namespace hmrnn
