// A limit on the memory of all requests together: bodies that wait to be parsed, and answers until clients have read
// them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace lockstep::server {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}

  // The share of one request; released by its destructor, also after the budget is gone. One thread at a time.
  class Share {
   public:
    ~Share() { *used_ -= bytes_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Takes so many more bytes; false, and takes none, if more than this fraction of the limit would then be in use. A
    // single request may take any number: what one request may ask for is limited elsewhere.
    bool take(size_t bytes, double part = 1);
    void become(size_t bytes);  // sets the number of bytes held
    size_t bytes() const { return bytes_; }

   private:
    friend class ByteBudget;
    Share(std::shared_ptr<std::atomic<size_t>> used, size_t limit) : used_(std::move(used)), limit_(limit) {}

    const std::shared_ptr<std::atomic<size_t>> used_;
    const size_t limit_;
    size_t bytes_ = 0;
  };

  // Any thread.
  std::shared_ptr<Share> share() const { return std::shared_ptr<Share>(new Share(used_, limit_)); }
  size_t used() const { return *used_; }
  size_t limit() const { return limit_; }

 private:
  const std::shared_ptr<std::atomic<size_t>> used_ = std::make_shared<std::atomic<size_t>>(0);
  const size_t limit_;
};

}  // namespace lockstep::server
