// Vectors of the processor, by the compiler's own extension: the same source for SSE, AVX, AVX-512 and NEON.
#pragma once

#include <cstdint>
#include <cstring>

namespace hmrnn {

// A tile of kTileRows x (2 vectors) of a product stays in registers: 32 of them with AVX-512 and NEON, 16 otherwise.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileRows = 12;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileRows = 6;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kTileRows = 12;
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

template <typename To, typename From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// The upper half of a float32.
struct Bf16 {
  uint16_t value;
};

// Its upper half is the bfloat16 nearest to x, ties to even, as torch rounds; NaN stays NaN. Without branches: a vector.
inline uint32_t rounded(float x) {
  const uint32_t u = bits<uint32_t>(x), nearest = u + 0x7fff + ((u >> 16) & 1);
  return (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : nearest;
}

// Two of them, as they lie in memory.
inline uint32_t rounded_pair(float first, float second) { return (rounded(first) >> 16) | (rounded(second) & 0xffff0000); }

// A block of 16 x 16, transposed: out[j * stride + i] = in[i][j].
template <typename T>
inline void put_transposed(const T (&in)[16][16], T* out, int64_t stride) {
  for (int j = 0; j < 16; ++j)
    for (int i = 0; i < 16; ++i) out[j * stride + i] = in[i][j];
}

}  // namespace hmrnn
