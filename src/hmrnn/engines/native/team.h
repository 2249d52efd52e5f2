// Threads that compute a pass together: how they meet, and how they share the work.
#pragma once

#include <ATen/Parallel.h>
#include <omp.h>

#include <atomic>
#include <chrono>
#include <memory>

#include "packed.h"
#include "tables.h"

namespace hmrnn {

// Threads that meet several times in a time step can't afford to sleep in between, as long as each has a core. Where they
// have not, the one that waits must leave its core to the other.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void wait() {
    if (threads_ == 1) return;
    const int phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    for (int spins = 0; spins < kSpins; ++spins) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    phase_.wait(phase, std::memory_order_acquire);
  }

 private:
  static constexpr int kSpins = 4000;  // some 50 microseconds: longer than threads on cores of their own lie apart
  const int threads_;
  std::atomic<int> arrived_{0}, phase_{0};
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Where the time goes: seconds that a thread spends in matrix products, the packing of their operands included.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { seconds_ += seconds_since(start_); }

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_;
};

// The share of `count` things that thread `id` of `threads` takes.
struct Share {
  int64_t begin, end;
  Share(int64_t count, int id, int threads) : begin(count * id / threads), end(count * (id + 1) / threads) {}
};

// One of the threads: its share of products, packed weights with rows that it was given one by one.
template <typename T>
struct Member {
  const int id, threads;
  Barrier& barrier;
  std::vector<const T*> a;  // rows to multiply
  std::vector<T*> c;        // where the products go
  double seconds = 0;       // in products

  Member(int id, int threads, Barrier& barrier) : id(id), threads(threads), barrier(barrier) {}

  void pack(Packed<T>& packed, const at::Tensor& weight, bool transposed) {
    Stopwatch watch(seconds);
    const Share panels(packed.panels(), id, threads);
    if (transposed)
      packed.pack_transposed(data<T>(weight), panels.begin, panels.end);
    else
      packed.pack(data<T>(weight), panels.begin, panels.end);
  }

  void clear() {
    a.clear();
    c.clear();
  }

  void add(const T* from, T* to) {
    a.push_back(from);
    c.push_back(to);
  }

  void multiply(const Packed<T>& weights, bool accumulate) {
    if (a.empty()) return;
    Stopwatch watch(seconds);
    const Share panels(weights.panels(), id, threads);
    hmrnn::multiply(weights, panels.begin, panels.end, static_cast<int64_t>(a.size()), a.data(), c.data(), accumulate);
  }
};

// Runs work(member) in every thread. Returns the seconds that products took.
template <typename T, typename Work>
double together(Work work) {
  const int threads = at::get_num_threads();
  std::unique_ptr<Barrier> barrier;
  double seconds = 0;
#pragma omp parallel num_threads(threads)
  {
#pragma omp single
    barrier = std::make_unique<Barrier>(omp_get_num_threads());
    Member<T> member(omp_get_thread_num(), omp_get_num_threads(), *barrier);
    work(member);
#pragma omp critical
    seconds = std::max(seconds, member.seconds);
  }
  return seconds;
}

}  // namespace hmrnn
