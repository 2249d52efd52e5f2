// Vectors of the processor, by the compiler's own extension: the same source for SSE, AVX, AVX-512 and NEON.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

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

// Pairs of neighbours in a row of 32: out[j] holds in[2j] and in[2j + 1]. (The instructions take denormal numbers for
// zero, as those that multiply bfloat16 do.)
inline void round_neighbours(const float* in, uint32_t* out) {
#if defined(__AVX512BF16__)
  const auto both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(in + 16), _mm512_loadu_ps(in));
  _mm512_storeu_si512(out, bits<__m512i>(both));
#else
#pragma omp simd
  for (int j = 0; j < 16; ++j) out[j] = rounded_pair(in[2 * j], in[2 * j + 1]);
#endif
}

// Pairs from two rows of 16: out[j] holds even[j] and odd[j].
inline void round_rows(const float* even, const float* odd, uint32_t* out) {
#if defined(__AVX512BF16__)
  alignas(64) static constexpr uint16_t kInTurn[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = bits<__m512i>(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(odd), _mm512_loadu_ps(even)));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), both));
#else
#pragma omp simd
  for (int j = 0; j < 16; ++j) out[j] = rounded_pair(even[j], odd[j]);
#endif
}

// A block of 16 x 16, transposed: out[j * stride + i] = in[i][j].
template <typename T>
inline void put_transposed(const T (&in)[16][16], T* out, int64_t stride) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    // Four rounds; in each, rows that lie `apart` from each other exchange halves of what they still have to exchange.
    using V = Vector<uint32_t>::type;
    V rows[16];
    std::memcpy(rows, in, sizeof(rows));
    auto exchange = [&rows](int apart, V low, V high) {
      for (int i = 0; i < 16; ++i)
        if (!(i & apart)) {
          const V first = __builtin_shuffle(rows[i], rows[i + apart], low), second = __builtin_shuffle(rows[i], rows[i + apart], high);
          rows[i] = first;
          rows[i + apart] = second;
        }
    };
    exchange(1, V{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30}, V{1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31});
    exchange(2, V{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}, V{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
    exchange(4, V{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27}, V{4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
    exchange(8, V{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, V{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
    for (int j = 0; j < 16; ++j) std::memcpy(out + j * stride, &rows[j], sizeof(V));
    return;
  }
#endif
  for (int j = 0; j < 16; ++j)
    for (int i = 0; i < 16; ++i) out[j * stride + i] = in[i][j];
}

}  // namespace hmrnn
