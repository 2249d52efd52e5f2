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

// The upper half of a float32. Rounded to nearest, ties to even, as torch does; NaN stays NaN.
struct Bf16 {
  uint16_t value;

  static Bf16 round(float x) {
    const uint32_t u = bits<uint32_t>(x);
    const uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40;
    return {static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
  }
};

}  // namespace hmrnn
