// Stands in for the engine until its C++ arrives: enough to be built, shipped, found and loaded.
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int hmrnn_abi() { return 1; }

EXPORT const char* hmrnn_variant() {
#if defined(__AVX512BF16__)
    return "x86-64-v4-bf16";
#elif defined(__AVX512F__)
    return "x86-64-v4";
#elif defined(__AVX2__)
    return "x86-64-v3";
#elif defined(__SSE4_2__)
    return "x86-64-v2";
#elif defined(__aarch64__)
    return "aarch64";
#else
    return "?";
#endif
}

typedef float floats __attribute__((vector_size(16)));

EXPORT float hmrnn_sum(int threads) {
    std::vector<floats> parts(threads);
    std::vector<std::thread> team;
    for (int t = 0; t < threads; t++) team.emplace_back([&parts, t] { parts[t] = floats{1, 1, 1, 1} * float(t); });
    for (auto& thread : team) thread.join();
    floats sum = {};
    for (auto& part : parts) sum += part;
    return sum[0] + sum[1] + sum[2] + sum[3];
}
