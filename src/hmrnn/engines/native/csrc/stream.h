// Single time steps without a gradient, as in generation: only the weights of layers that do something are read.
#pragma once

#include <memory>

#include "hmrnn.h"

namespace hmrnn {

struct AnyStream {
  virtual ~AnyStream() = default;
  virtual void step(const HmrnnStep& step) = 0;
  virtual void set(const void* const* h, const void* const* c, const void* z) = 0;
  virtual void get(void* const* h, void* const* c, void* z) const = 0;
  virtual void next(int64_t symbol, double slope, int threads, const float* uniforms, float* logits, float* z) = 0;
};

std::unique_ptr<AnyStream> make_stream(const HmrnnStream& what);

}  // namespace hmrnn
