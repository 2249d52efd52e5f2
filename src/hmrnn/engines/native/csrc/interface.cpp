// The C interface: what can go wrong comes back as text.
#include <cstring>
#include <new>
#include <stdexcept>

#include "passes.h"

namespace {

constexpr const char* kNoMemory = "there is not enough memory";
constexpr const char* kKernels[] = {"widen", "dot", "amx"};

}  // namespace

int hmrnn_abi(void) { return HMRNN_ABI; }

const char* hmrnn_forward(const HmrnnCall* call, HmrnnForward* out, void** tables) {
  std::unique_ptr<hmrnn::AnyTables> kept;
  try {
    if (call->precision == HMRNN_FLOAT64)
      hmrnn::forward<double, double>(*call, *out, kept);
    else if (call->precision == HMRNN_BFLOAT16)
      hmrnn::forward<float, hmrnn::Bf16>(*call, *out, kept);
    else
      hmrnn::forward<float, float>(*call, *out, kept);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  *tables = kept.release();
  return nullptr;
}

const char* hmrnn_backward(void* tables, HmrnnBackward* gradients) {
  try {
    static_cast<hmrnn::AnyTables*>(tables)->backward(*gradients);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::runtime_error&) {
    return "the system gives no more threads";
  }
  return nullptr;
}

void hmrnn_free(void* tables) { delete static_cast<hmrnn::AnyTables*>(tables); }

const char* hmrnn_product(const HmrnnProduct* product) {
  try {
    hmrnn::product(*product);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
  return nullptr;
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
