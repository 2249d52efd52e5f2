#include "team.h"

#include <algorithm>
#include <exception>
#include <system_error>

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace hmrnn {

namespace {

int64_t process() {
#if defined(_WIN32)
  return 0;
#else
  return getpid();
#endif
}

}  // namespace

std::shared_ptr<Pool> Pool::of_this_process() {
  // A fork takes no threads along: the child needs a pool of its own, and must not touch what is left of the parent's.
  static std::mutex mutex;
  static std::shared_ptr<Pool>* pool = nullptr;
  static int64_t owner = -1;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != process()) {
    pool = new std::shared_ptr<Pool>(std::make_shared<Pool>());  // never freed: threads may run when the process ends
    owner = process();
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
  if (!lock_.owns_lock()) return;
  pool_->grow(wanted);
  threads_ = std::min<int>(wanted, static_cast<int>(pool_->threads_.size()) + 1);
}

void Pool::grow(int threads) {
  while (static_cast<int>(threads_.size()) + 1 < threads) {
    try {
      threads_.emplace_back(&Pool::serve, this, static_cast<int>(threads_.size()) + 1, round_);
    } catch (const std::system_error&) {
      return;  // the system gives no more: those that there are will do
    }
  }
}

void Pool::Lease::run(const std::function<void(int)>& task) const {
  if (threads_ == 1) return task(0);
  std::exception_ptr failure;
  std::mutex failing;
  const std::function<void(int)> work = [&](int id) {
    try {
      task(id);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(failing);
      failure = std::current_exception();
    }
  };
  {
    const std::lock_guard<std::mutex> lock(pool_->mutex_);
    pool_->work_ = &work;
    pool_->wanted_ = threads_;
    pool_->running_ = threads_ - 1;
    ++pool_->round_;
  }
  pool_->wake_.notify_all();
  work(0);
  std::unique_lock<std::mutex> lock(pool_->mutex_);
  pool_->finished_.wait(lock, [&] { return pool_->running_ == 0; });
  if (failure) std::rethrow_exception(failure);
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
