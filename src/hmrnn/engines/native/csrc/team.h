// Threads, and how those that share rows meet.
//
// They are those of the OpenMP runtime that torch has brought into the process. After each operation of torch these wait
// for the next one without sleeping, for some milliseconds: threads of our own would have to share the cores with them.
// Where there is no such runtime, and in a process that was forked, which takes no threads along, we start our own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hmrnn {

// The number of this process: it is another after a fork, which takes no threads along.
int64_t this_process();

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Threads that meet several times in a time step can't afford to sleep in between, as long as each has a core. Where they
// have not, the one that waits must leave its core to the other.
class Barrier {
 public:
  static constexpr int kSpins = 1000;  // some 20 to 50 microseconds: longer than threads on cores of their own lie apart

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
      pause_briefly();
    }
    phase_.wait(phase, std::memory_order_acquire);
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0}, phase_{0};
};

// The share of `count` things that member `id` of `members` takes.
struct Share {
  int64_t begin, end;
  Share(int64_t count, int id, int members) : begin(count * id / members), end(count * (id + 1) / members) {}
  bool has(int64_t i) const { return begin <= i && i < end; }
};

// Runs work(0) .. work(threads - 1) at the same time, the first in the calling thread. What one throws is thrown again when
// all have ended; work that meets at a barrier must not throw.
// If another thread of the program holds the pool, this call waits for it if it is patient, or gets one thread: ask
// `Lease::threads`. The system may give fewer than are wanted, too.
class Pool {
 public:
  using Work = std::function<void(int)>;

  class Lease {
   public:
    explicit Lease(int wanted, bool patient = false);
    int threads() const { return threads_; }
    void run(const Work& task) const;

   private:
    std::shared_ptr<Pool> pool_;
    std::unique_lock<std::mutex> lock_;
    int threads_ = 1;
  };

  ~Pool();

 private:
  static std::shared_ptr<Pool> of_this_process();
  int grant(int threads);
  int grow(int threads);
  void run(int threads, const Work& work);
  void serve(int id, uint64_t done);

  std::mutex leased_, mutex_;
  std::condition_variable wake_, finished_;
  std::vector<std::thread> threads_;  // of our own
  const Work* work_ = nullptr;
  uint64_t round_ = 0;
  int wanted_ = 0, running_ = 0;
  bool ends_ = false;
};

// Does tasks 0 .. count - 1, each in whichever thread comes free.
template <typename Task>
void share_out(const Pool::Lease& lease, int64_t count, Task task) {
  std::atomic<int64_t> next{0};
  lease.run([&](int id) {
    for (int64_t k; (k = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(k, id);
  });
}

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

}  // namespace hmrnn
