// The gradient of hidden states that were written out step by step. In one pass: as operations of torch, it takes two more
// tensors of the sequence's size.
#include "passes.h"

namespace hmrnn {

template <typename T>
void expansion_backward(const HmrnnExpansion& e) {
  constexpr int64_t kBlock = 32;  // steps, whose gradient stays in the cache
  const Pool::Lease lease(e.steps * e.width < kWorthThreads ? 1 : e.threads);
  const T *grad = static_cast<const T*>(e.grad), *tangents = static_cast<const T*>(e.tangents);
  T *d_values = static_cast<T*>(e.d_values), *d_repeats = static_cast<T*>(e.d_repeats);
  lease.run([&](int id) {
    // A value stands at many steps, so threads share it by columns; dot products by steps.
    const Share columns(e.width, id, lease.threads());
    const int64_t first = columns.begin, count = columns.end - columns.begin;
    for (int64_t n = 0; n < e.values; ++n) zero(row(d_values, n, e.width) + first, count);
    for (int64_t begin = 0; begin < e.steps; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, e.steps);
      for (int64_t s = begin; s < end; ++s)
        axpy(T(1), row(grad, s, e.width) + first, row(d_values, e.index[s], e.width) + first, count);
      if (begin / kBlock % lease.threads() == id)
        for (int64_t s = begin; s < end; ++s)
          d_repeats[s] = dot(row(grad, s, e.width), row(tangents, e.index[s], e.width), e.width);
    }
  });
}

template void expansion_backward<float>(const HmrnnExpansion&);
template void expansion_backward<double>(const HmrnnExpansion&);

}  // namespace hmrnn
