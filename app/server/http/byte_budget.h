// A limit on the memory that all requests together make the server hold: bodies that wait to be read, and answers until
// their clients have taken them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace lockstep::server {

class ByteBudget {
 public:
  explicit ByteBudget(size_t limit) : limit_(limit) {}

  // What one request holds; given back when it is destroyed, also after the budget. One thread at a time.
  class Share {
   public:
    ~Share() { *used_ -= bytes_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Takes so many more; false, and nothing, if then more than this part of the limit were in use. Who is alone may
    // take anything: what a single request may ask for is limited elsewhere.
    bool take(size_t bytes, double part = 1);
    void become(size_t bytes);  // what is held turned out to be so much
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
