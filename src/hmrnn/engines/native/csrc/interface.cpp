// The C interface: what can go wrong comes back as text.
#include <cstring>
#include <new>
#include <exception>
#include <string>

#include "passes.h"
#include "stream.h"

namespace {

constexpr const char* kKernels[] = {"widen", "dot", "amx"};

template <typename Work>
const char* guarded(Work work) {
  try {
    work();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return "there is not enough memory";
  } catch (const std::exception& error) {
    static thread_local std::string what;
    what = error.what();
    return what.c_str();
  }
}

}  // namespace

int hmrnn_abi(void) { return HMRNN_ABI; }

const char* hmrnn_forward(const HmrnnCall* call, HmrnnForward* out, void** tables) {
  std::unique_ptr<hmrnn::AnyTables> kept;
  const char* error = guarded([&] {
    if (call->precision == HMRNN_FLOAT64)
      hmrnn::forward<double>(*call, *out, kept);
    else
      hmrnn::forward<float>(*call, *out, kept);
  });
  *tables = kept.release();
  return error;
}

const char* hmrnn_backward(void* tables, HmrnnBackward* gradients) {
  return guarded([&] { static_cast<hmrnn::AnyTables*>(tables)->backward(*gradients); });
}

void hmrnn_free(void* tables) { delete static_cast<hmrnn::AnyTables*>(tables); }

const char* hmrnn_product(const HmrnnProduct* product) {
  return guarded([&] { hmrnn::product(*product); });
}

const char* hmrnn_expansion_backward(const HmrnnExpansion* expansion) {
  return guarded([&] {
    if (expansion->precision == HMRNN_FLOAT64)
      hmrnn::expansion_backward<double>(*expansion);
    else
      hmrnn::expansion_backward<float>(*expansion);
  });
}

const char* hmrnn_stream_new(const HmrnnStream* what, void** stream) {
  return guarded([&] { *stream = hmrnn::make_stream(*what).release(); });
}

void hmrnn_stream_free(void* stream) { delete static_cast<hmrnn::AnyStream*>(stream); }

const char* hmrnn_stream_step(void* stream, const HmrnnStep* step) {
  return guarded([&] { static_cast<hmrnn::AnyStream*>(stream)->step(*step); });
}

const char* hmrnn_stream_set(void* stream, const void* const* h, const void* const* c, const void* z) {
  return guarded([&] { static_cast<hmrnn::AnyStream*>(stream)->set(h, c, z); });
}

const char* hmrnn_stream_get(void* stream, void* const* h, void* const* c, void* z) {
  return guarded([&] { static_cast<hmrnn::AnyStream*>(stream)->get(h, c, z); });
}

const char* hmrnn_stream_next(void* stream, int64_t symbol, double slope, int threads, const float* uniforms, float* logits, float* z) {
  return guarded([&] { static_cast<hmrnn::AnyStream*>(stream)->next(symbol, slope, threads, uniforms, logits, z); });
}

const char* hmrnn_bfloat16_kernel(void) { return kKernels[static_cast<int>(hmrnn::bf16_kernel())]; }

int hmrnn_bfloat16_use(const char* kernel) {
  for (int k = 0; k < 3; ++k) {
    const auto known = static_cast<hmrnn::Bf16Kernel>(k);
    if (std::strcmp(kernel, kKernels[k]) == 0 && hmrnn::bf16_has(known)) {
      hmrnn::bf16_kernel() = known;
      return 1;
    }
  }
  return 0;
}
