// A second thread for products that take some ten microseconds: too short to wake a thread for, or to wait for one that
// has no core. It looks out for work for a while after the last, takes parts of it as they come free, and what it does not
// finish in time is done again by the one who waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hmrnn {

class Partner {
 public:
  static constexpr int kMostParts = 16;
  static constexpr int64_t kPartSize = 2048;  // numbers of a part, at most
  using Work = std::function<void(int part, float* out)>;

  // The partner of this process, or null if another thread of the program has it.
  class Lease {
   public:
    explicit Lease(bool wanted);
    Partner* get() const { return partner_; }

   private:
    Partner* partner_ = nullptr;
    std::unique_lock<std::mutex> lock_;
  };

  // Does parts 0 .. parts - 1 of `size` numbers each, of which the last may be shorter: `total` in all, into `out`.
  // The work may still be run by the partner when this is over, for nothing: what it reads must stay until `settle`.
  void run(std::shared_ptr<const Work> work, int parts, int64_t size, int64_t total, float* out);

  // Waits until the partner works no more. For those who free what it reads.
  static void settle();

 private:
  Partner();
  static Partner* of_this_process(bool make);
  void serve();
  bool wait_for_post(uint64_t seen);

  std::mutex leased_, work_mutex_;
  std::shared_ptr<const Work> work_;         // of the generation posted last
  std::atomic<uint64_t> next_{0};            // generation << 8 | the next part
  std::atomic<int> parts_{0};
  std::atomic<uint64_t> states_[kMostParts];  // generation << 1 | (1: taken back), of the latest that was ended
  std::atomic<bool> asleep_{false}, busy_{false};
  std::vector<float> room_;
  std::thread thread_;
  int rest_ = 0, rest_length_ = kShortRest;

  static constexpr int kShortRest = 2, kLongRest = 1 << 14;  // runs without a partner that came too late
};

}  // namespace hmrnn
