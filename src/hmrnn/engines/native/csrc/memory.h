// Memory that is not written before it is used: the pages of a large table that are never touched take none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace hmrnn {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : size_(size), data_(size ? static_cast<T*>(::operator new(size * sizeof(T), kAligned)) : nullptr) {}
  T* get() const { return data_.get(); }

  // Makes room for so many, if there is not: what was there is lost.
  void room(int64_t size) {
    if (size > size_) *this = Buffer(size);
  }

 private:
  int64_t size_ = 0;
  static constexpr std::align_val_t kAligned{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAligned); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace hmrnn
