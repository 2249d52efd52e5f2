#include "partner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "team.h"

namespace hmrnn {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLookOut = std::chrono::milliseconds(2);  // after the last work, before it sleeps: longer than a step takes
constexpr auto kTooLate = std::chrono::microseconds(25);

constexpr uint64_t first_part(uint64_t generation) { return generation << 8; }

}  // namespace

Partner* Partner::of_this_process(bool make) {
  static std::mutex mutex;
  static Partner* partner = nullptr;  // never freed: its thread runs until the process ends
  static int64_t owner = -1;
  const std::lock_guard<std::mutex> lock(mutex);
  if (owner != this_process()) {
    if (!make) return nullptr;
    partner = nullptr;
    owner = this_process();
    try {
      partner = new Partner;
    } catch (const std::system_error&) {
      // the system gives no thread: nobody helps
    }
  }
  return partner;
}

Partner::Partner() : room_(kMostParts * kPartSize) {
  for (auto& state : states_) state.store(0);
  thread_ = std::thread(&Partner::serve, this);
  thread_.detach();
}

Partner::Lease::Lease(bool wanted) {
  Partner* partner = wanted ? of_this_process(true) : nullptr;
  if (!partner) return;
  lock_ = std::unique_lock<std::mutex>(partner->leased_, std::try_to_lock);
  if (lock_.owns_lock()) partner_ = partner;
}

void Partner::run(std::shared_ptr<const Work> work, int parts, int64_t size, int64_t total, float* out) {
  auto mine = [&](int part) { (*work)(part, out + part * size); };
  if (rest_ > 0) {
    --rest_;
    for (int part = 0; part < parts; ++part) mine(part);
    return;
  }
  const uint64_t generation = (next_.load(std::memory_order_relaxed) >> 8) + 1;
  {
    const std::lock_guard<std::mutex> lock(work_mutex_);
    work_ = work;
  }
  parts_.store(parts, std::memory_order_relaxed);
  next_.store(first_part(generation), std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) next_.notify_one();
  uint32_t done = 0;
  for (uint64_t n; static_cast<int>((n = next_.fetch_add(1, std::memory_order_acq_rel)) & 0xff) < parts; done |= 1u << (n & 0xff))
    mine(static_cast<int>(n & 0xff));
  const auto start = Clock::now();
  bool late = false;
  for (int part = 0; part < parts; ++part) {
    if (done >> part & 1) continue;
    std::atomic<uint64_t>& state = states_[part];
    uint64_t seen;
    while ((seen = state.load(std::memory_order_acquire)) != generation << 1) {
      if (Clock::now() - start < kTooLate) {
        pause_briefly();
      } else if (state.compare_exchange_strong(seen, generation << 1 | 1, std::memory_order_acq_rel)) {
        late = true;
        mine(part);
        break;
      }
    }
    if (seen == generation << 1) {
      const int64_t count = std::min(size, total - part * size);
      std::memcpy(out + part * size, room_.data() + part * kPartSize, count * sizeof(float));
    }
  }
  // Once late is chance, on a machine that others share; late again and again, and it has no core.
  rest_length_ = late ? std::min(2 * rest_length_, kLongRest) : std::max(rest_length_ / 2, kShortRest);
  if (late) rest_ = rest_length_;
}

void Partner::serve() {
  uint64_t seen = 0;  // the generation that has no more for us
  for (;;) {
    if (!wait_for_post(seen)) continue;
    busy_.store(true, std::memory_order_seq_cst);
    uint64_t n = next_.load(std::memory_order_seq_cst);
    const uint64_t generation = n >> 8;
    while (n >> 8 == generation && static_cast<int>(n & 0xff) < parts_.load(std::memory_order_relaxed)) {
      const int part = static_cast<int>(n & 0xff);
      uint64_t before = states_[part].load(std::memory_order_relaxed);
      if (next_.compare_exchange_weak(n, n + 1, std::memory_order_acq_rel)) {
        std::shared_ptr<const Work> work;  // of this generation, or of a later one: then this part was taken back
        {
          const std::lock_guard<std::mutex> lock(work_mutex_);
          work = work_;
        }
        (*work)(part, room_.data() + part * kPartSize);
        states_[part].compare_exchange_strong(before, generation << 1, std::memory_order_acq_rel);
        n = next_.load(std::memory_order_acquire);
      }
    }
    seen = generation;
    busy_.store(false, std::memory_order_release);
  }
}

// Whether there is something new, after looking out for it; sleeps when there is nothing for long.
bool Partner::wait_for_post(uint64_t seen) {
  const auto start = Clock::now();
  do {
    for (int k = 0; k < 16; ++k) {
      if (next_.load(std::memory_order_acquire) >> 8 != seen) return true;
      pause_briefly();
    }
  } while (Clock::now() - start < kLookOut);
  asleep_.store(true, std::memory_order_seq_cst);
  const uint64_t n = next_.load(std::memory_order_seq_cst);
  if (n >> 8 == seen) next_.wait(n, std::memory_order_acquire);
  asleep_.store(false, std::memory_order_seq_cst);
  return false;
}

void Partner::settle() {
  Partner* partner = of_this_process(false);
  if (!partner) return;
  while (partner->busy_.load(std::memory_order_acquire)) std::this_thread::yield();
}

}  // namespace hmrnn
