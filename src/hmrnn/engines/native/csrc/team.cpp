#include "team.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <system_error>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#if defined(__linux__)
// Weak: null if no library in the process has them. Those of LLVM and Intel have GOMP_parallel, too.
extern "C" {
__attribute__((weak)) void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags);
__attribute__((weak)) int omp_get_thread_num(void);
__attribute__((weak)) int omp_get_num_threads(void);
__attribute__((weak)) int omp_in_parallel(void);
__attribute__((weak)) int omp_get_dynamic(void);
__attribute__((weak)) int omp_get_thread_limit(void);
}
#endif

namespace hmrnn {

int64_t this_process() {
#if defined(_WIN32)
  return 0;
#else
  return getpid();
#endif
}

namespace {

const int64_t loaded_in = this_process();

#if defined(__linux__)
// How many threads of torch's OpenMP runtime a call may have; 0 if they can't be used.
int openmp_threads(int wanted) {
  if (!GOMP_parallel || !omp_get_thread_num || !omp_get_num_threads || !omp_in_parallel || !omp_get_dynamic || !omp_get_thread_limit)
    return 0;
  if (this_process() != loaded_in || omp_in_parallel() || omp_get_dynamic()) return 0;
  return std::min(wanted, omp_get_thread_limit());
}

// Whether there were as many threads as were wanted; else nothing was done.
bool openmp_run(int threads, const Pool::Work& work) {
  struct Region {
    const Pool::Work& work;
    const int threads;
    std::atomic<int> running;
    bool whole = true;
  } region{work, threads, threads};
  auto run = [](void* data) {
    auto& region = *static_cast<Region*>(data);
    const int id = omp_get_thread_num();
    if (omp_get_num_threads() < region.threads) {
      if (id == 0) region.whole = false;
      return;
    }
    region.work(id);
    // The runtime would wait for the others without sleeping, on a core that one of them may need.
    int left = region.running.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if (left == 0) region.running.notify_one();
    for (int spins = 0; id == 0 && left > 0; left = region.running.load(std::memory_order_acquire))
      if (++spins < Barrier::kSpins)
        pause_briefly();
      else
        region.running.wait(left, std::memory_order_acquire);
  };
  GOMP_parallel(run, &region, static_cast<unsigned>(threads), 0);
  return region.whole;
}
#else
int openmp_threads(int) { return 0; }
bool openmp_run(int, const Pool::Work&) { return false; }
#endif

}  // namespace

std::shared_ptr<Pool> Pool::of_this_process() {
  // A fork takes no threads along: the child needs a pool of its own, and must not touch what is left of the parent's.
  static std::mutex mutex;
  static std::shared_ptr<Pool>* pool = nullptr;
  static int64_t owner = -1;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != this_process()) {
    pool = new std::shared_ptr<Pool>(std::make_shared<Pool>());  // never freed: threads may run when the process ends
    owner = this_process();
  }
  return *pool;
}

Pool::Lease::Lease(int wanted, bool patient) {
  if (wanted <= 1) return;
  pool_ = of_this_process();
  lock_ = std::unique_lock<std::mutex>(pool_->leased_, std::defer_lock);
  if (patient)
    lock_.lock();
  else
    lock_.try_lock();
  if (lock_.owns_lock()) threads_ = pool_->grant(wanted);
}

int Pool::grant(int threads) {
  const int granted = openmp_threads(threads);
  return granted ? granted : grow(threads);
}

int Pool::grow(int threads) {
  while (static_cast<int>(threads_.size()) + 1 < threads) {
    try {
      threads_.emplace_back(&Pool::serve, this, static_cast<int>(threads_.size()) + 1, round_);
    } catch (const std::system_error&) {
      break;  // the system gives no more: those that there are will do
    }
  }
  return std::min(threads, static_cast<int>(threads_.size()) + 1);
}

void Pool::Lease::run(const Work& task) const {
  if (threads_ == 1) return task(0);
  std::exception_ptr failure;
  std::mutex failing;
  pool_->run(threads_, [&](int id) {
    try {
      task(id);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failing);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void Pool::run(int threads, const Work& work) {
  if (openmp_threads(threads) == threads && openmp_run(threads, work)) return;
  if (grow(threads) < threads) throw std::runtime_error("the system gives no more threads");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = &work;
    wanted_ = threads;
    running_ = threads - 1;
    ++round_;
  }
  wake_.notify_all();
  work(0);
  std::unique_lock<std::mutex> lock(mutex_);
  finished_.wait(lock, [&] { return running_ == 0; });
}

void Pool::serve(int id, uint64_t done) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ends_ || round_ != done; });
    if (ends_) return;
    done = round_;
    if (id >= wanted_) continue;
    const auto* work = work_;
    lock.unlock();
    (*work)(id);
    lock.lock();
    if (--running_ == 0) finished_.notify_one();
  }
}

Pool::~Pool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

}  // namespace hmrnn
