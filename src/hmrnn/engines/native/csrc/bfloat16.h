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

// Rows in bfloat16, in blocks of 16 rows x 16 pairs of numbers: [row / 16][depth / 32][row % 16][depth % 32]. Columns that
// are taken as rows stay as they lie, which is by pairs, if the kernel can read them so: [row / 16][pair][row % 16].
class RoundedRows {
 public:
  void reserve(int64_t rows, int64_t depth) { allocate(rows, depth); }

  // Rounds rows of float32.
  void take(const std::vector<const float*>& rows, int64_t depth) {
    allocate(static_cast<int64_t>(rows.size()), depth);
    by_pairs_ = false;
    for (int64_t m = 0; m < rows_; ++m)
      for (int64_t k = 0; k < depth_; k += kBf16Depth) {
        const float* from = rows[m] + k;
        float padded[kBf16Depth] = {};
        if (depth - k < kBf16Depth) from = std::copy_n(from, depth - k, padded) - (depth - k);
        round_neighbours(from, block(m, k) + m % kBlockRows * kBlockPairs);
      }
  }

  // Rounds the columns [begin, end) of rows of float32, as rows.
  template <typename Row>
  void take_transposed(Row row_of, int64_t depth, int64_t begin, int64_t end) {
    allocate(end - begin, depth);
    by_pairs_ = true;
    constexpr int64_t kAhead = 4 * kBlockRows;
    const float* rows[kBf16Depth];  // null: zeros
    for (int64_t k = 0; k < depth_; k += kBf16Depth) {
      for (int64_t j = 0; j < kBf16Depth; ++j) rows[j] = k + j < depth ? row_of(k + j) + begin : nullptr;
      for (int64_t m = 0; m < rows_; m += kBlockRows) {
        uint32_t* to = block(m, k);
        const int64_t count = std::min<int64_t>(kBlockRows, rows_ - m);
        for (int j = 0; j < kBf16Depth; j += 2, to += kBlockRows)
          if (rows[j + 1] && count == kBlockRows) {
            __builtin_prefetch(rows[j] + m + kAhead);  // 32 rows at a time are more than the processor foresees
            __builtin_prefetch(rows[j + 1] + m + kAhead);
            round_rows(rows[j] + m, rows[j + 1] + m, to);
          } else
            for (int i = 0; i < kBlockRows; ++i)
              to[i] = rounded_pair(rows[j] && i < count ? rows[j][m + i] : 0.0f, rows[j + 1] && i < count ? rows[j + 1][m + i] : 0.0f);
      }
    }
    if (bf16_kernel() == Bf16Kernel::kAmx) transpose_blocks();
  }

  // Rows `to` (+)= these rows . weights, for panels of two vectors in width. `panels` is the first of them.
  void multiply(const uint32_t* panels, int64_t begin, int64_t end, int64_t width, float* const* to, bool accumulate) const;

 private:
  static constexpr int kBlockPairs = kBf16Depth / 2;

  int64_t rows_ = 0, depth_ = 0;
  bool by_pairs_ = false;
  Buffer<uint32_t> data_;  // in pairs

  // The block of row m and depth k.
  uint32_t* block(int64_t m, int64_t k) const {
    return data_.get() + m / kBlockRows * kBlockRows * depth_ / 2 + k / kBf16Depth * kBlockPairs * kBlockRows;
  }

  void transpose_blocks() {
    alignas(64) uint32_t copy[kBlockPairs][kBlockRows];
    for (int64_t m = 0; m < rows_; m += kBlockRows)
      for (int64_t k = 0; k < depth_; k += kBf16Depth) {
        std::memcpy(copy, block(m, k), sizeof(copy));
        put_transposed(copy, block(m, k), kBlockPairs);
      }
    by_pairs_ = false;
  }

  void allocate(int64_t rows, int64_t depth) {
    rows_ = rows;
    depth_ = (depth + kBf16Depth - 1) / kBf16Depth * kBf16Depth;
    const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
    data_.room(blocks * kBlockRows * depth_ / 2);
    // A tile multiplies all rows of a block: those that there are not must hold numbers, whichever.
    if (const int64_t last = rows % kBlockRows)
      for (int64_t k = 0; k < depth_; k += kBf16Depth)
        std::memset(block(rows, k) + last * kBlockPairs, 0, (kBlockRows - last) * kBf16Depth * sizeof(Bf16));
  }
};

}  // namespace hmrnn
