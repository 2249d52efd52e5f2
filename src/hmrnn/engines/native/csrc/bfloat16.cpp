#include "bfloat16.h"

#include <algorithm>
#include <cstdlib>

#include "packed.h"

#if HMRNN_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace hmrnn {

namespace {

constexpr int kPanel = Panels<float>::kPanel;
constexpr int kBf16TileRows = kTileRows >= 8 ? 8 : 4;  // of which a block of 16 has two or four

#if HMRNN_AMX
// Linux gives a process the registers when it asks for them; a virtual machine may not have them although it says so.
bool ask_for_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tiles = d & (1u << 24), bf16 = d & (1u << 22);
  return tiles && bf16 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileConfig() {
    for (int i = 0; i < 8; ++i) {
      row_bytes[i] = 64;
      rows[i] = 16;
    }
  }
};

// Two blocks of rows (or one, if kBlocks is 1) times a panel of 32 columns, into `out`, 32 numbers a row.
template <int kBlocks>
inline void amx_tile(const Bf16* a, int64_t block, int64_t depth, const Bf16* panel, float* out) {
  constexpr int kAhead = 8192;  // bytes: weights come from beyond the second cache, and the processor fetches too late
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBlocks == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kBf16Depth) {
    const char* next = reinterpret_cast<const char*>(panel) + kAhead;
#pragma GCC unroll 32
    for (int line = 0; line < 32; ++line) _mm_prefetch(next + 64 * line, _MM_HINT_T1);
    _tile_loadd(6, panel, 128);
    _tile_loadd(7, panel + 32, 128);
    _tile_loadd(4, a, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kBlocks == 2) {
      _tile_loadd(5, a + block, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    a += kBlockRows * kBf16Depth;
    panel += kBf16Depth * kPanel;
  }
  _tile_stored(0, out, 128);
  _tile_stored(1, out + 16, 128);
  if constexpr (kBlocks == 2) {
    _tile_stored(2, out + 16 * 32, 128);
    _tile_stored(3, out + 16 * 32 + 16, 128);
  }
}

void amx_multiply(const Bf16* data, int64_t rows, int64_t depth, const Bf16* panels, int64_t begin, int64_t end, int64_t width,
                  float* const* to, bool accumulate) {
  static const TileConfig config;
  alignas(64) float out[32 * 32];
  _tile_loadconfig(&config);
  for (int64_t p = begin; p < end; ++p) {
    const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, width - first), block = kBlockRows * depth;
    const Bf16* panel = panels + p * depth * kPanel;
    for (int64_t m = 0; m < rows; m += 2 * kBlockRows) {
      if (m + kBlockRows < rows)
        amx_tile<2>(data + m * depth, block, depth, panel, out);
      else
        amx_tile<1>(data + m * depth, block, depth, panel, out);
      for (int64_t i = m; i < std::min(rows, m + 2 * kBlockRows); ++i) {
        const float* o = out + (i - m) * 32;
        put<float>({Vector<float>::load(o), Vector<float>::load(o + 16)}, to[i] + first, columns, accumulate);
      }
    }
  }
  _tile_release();
}
#endif

Bf16Kernel fastest() {
  if (bf16_has(Bf16Kernel::kAmx)) return Bf16Kernel::kAmx;
#if defined(__AVX512BF16__)
  if (__builtin_cpu_is("amd")) return Bf16Kernel::kDot;
#endif
  return Bf16Kernel::kWiden;
}

// c[m][0 .. columns) (+)= a[m] . panel, for M rows of a block. kByPairs: how its numbers lie, see RoundedRows.
template <int M, bool kDot, bool kByPairs>
inline void bf16_tile(const Bf16* a, int64_t depth, const Bf16* panel, float* const* c, int64_t columns, bool accumulate) {
  using F = Vector<float>;
  using U = Vector<uint32_t>;
  F::type sum[M][2] = {};
  const uint32_t* b = reinterpret_cast<const uint32_t*>(panel);
  for (int64_t k = 0; k < depth; k += kBf16Depth, a += kBlockRows * kBf16Depth) {
    for (int pair = 0; pair < kBf16Depth / 2; ++pair, b += kPanel) {
      const U::type b0 = U::load(b), b1 = U::load(b + U::lanes);
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        uint32_t both;
        std::memcpy(&both, a + 2 * (kByPairs ? pair * kBlockRows + m : m * kBf16Depth / 2 + pair), sizeof(both));
        if constexpr (kDot) {
#if defined(__AVX512BF16__)
          const auto left = bits<__m512bh>(_mm512_set1_epi32(both));
          sum[m][0] = bits<F::type>(_mm512_dpbf16_ps(bits<__m512>(sum[m][0]), left, bits<__m512bh>(b0)));
          sum[m][1] = bits<F::type>(_mm512_dpbf16_ps(bits<__m512>(sum[m][1]), left, bits<__m512bh>(b1)));
#endif
        } else {
          const float even = bits<float>(both << 16), odd = bits<float>(both & 0xffff0000u);
          sum[m][0] += even * bits<F::type>(b0 << 16);
          sum[m][1] += even * bits<F::type>(b1 << 16);
          sum[m][0] += odd * bits<F::type>(b0 & 0xffff0000u);
          sum[m][1] += odd * bits<F::type>(b1 & 0xffff0000u);
        }
      }
    }
  }
  for (int m = 0; m < M; ++m) put<float>(sum[m], c[m], columns, accumulate);
}

template <int M, bool kDot, bool kByPairs>
struct Bf16Tiles {
  static void run(int rows, const Bf16* a, int64_t depth, const Bf16* panel, float* const* c, int64_t columns, bool accumulate) {
    if (rows == M)
      bf16_tile<M, kDot, kByPairs>(a, depth, panel, c, columns, accumulate);
    else
      Bf16Tiles<M - 1, kDot, kByPairs>::run(rows, a, depth, panel, c, columns, accumulate);
  }
};

template <bool kDot, bool kByPairs>
struct Bf16Tiles<0, kDot, kByPairs> {
  static void run(int, const Bf16*, int64_t, const Bf16*, float* const*, int64_t, bool) {}
};

template <bool kDot, bool kByPairs>
void vector_multiply(const Bf16* data, int64_t rows, int64_t depth, const Bf16* panels, int64_t begin, int64_t end, int64_t width,
                     float* const* to, bool accumulate) {
  float* c[kBf16TileRows];
  for (int64_t p = begin; p < end; ++p) {
    const int64_t first = p * kPanel, columns = std::min<int64_t>(kPanel, width - first);
    for (int64_t block = 0; block < rows; block += kBlockRows) {
      const int64_t count = std::min<int64_t>(kBlockRows, rows - block), tiles = (count + kBf16TileRows - 1) / kBf16TileRows;
      for (int64_t i = 0, m = 0; i < tiles; ++i) {
        const int height = static_cast<int>(count * (i + 1) / tiles - m);
        for (int j = 0; j < height; ++j) c[j] = to[block + m + j] + first;
        const Bf16* a = data + block * depth + m * (kByPairs ? 2 : kBf16Depth);
        Bf16Tiles<kBf16TileRows, kDot, kByPairs>::run(height, a, depth, panels + p * depth * kPanel, c, columns, accumulate);
        m += height;
      }
    }
  }
}

}  // namespace

bool bf16_has(Bf16Kernel kernel) {
#if HMRNN_AMX
  static const bool amx = ask_for_amx();
#else
  constexpr bool amx = false;
#endif
#if defined(__AVX512BF16__)
  constexpr bool dot = true;
#else
  constexpr bool dot = false;
#endif
  return kernel == Bf16Kernel::kWiden || (kernel == Bf16Kernel::kDot && dot) || (kernel == Bf16Kernel::kAmx && amx);
}

Bf16Kernel& bf16_kernel() {
  static Bf16Kernel kernel = fastest();
  return kernel;
}

void RoundedRows::multiply(const uint32_t* panels, int64_t begin, int64_t end, int64_t width, float* const* to, bool accumulate) const {
  auto* multiply = by_pairs_ ? vector_multiply<false, true> : vector_multiply<false, false>;
#if defined(__AVX512BF16__)
  if (bf16_kernel() == Bf16Kernel::kDot) multiply = by_pairs_ ? vector_multiply<true, true> : vector_multiply<true, false>;
#endif
#if HMRNN_AMX
  if (bf16_kernel() == Bf16Kernel::kAmx) multiply = amx_multiply;
#endif
  const auto *rows = reinterpret_cast<const Bf16*>(data_.get()), *weights = reinterpret_cast<const Bf16*>(panels);
  multiply(rows, rows_, depth_, weights, begin, end, width, to, accumulate);
}

}  // namespace hmrnn
