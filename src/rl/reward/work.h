// How much arithmetic one verdict may take. It is counted, not timed, so that a verdict depends on no machine.
#pragma once

#include <cstdint>

namespace lockstep::rl {

class Work {
 public:
  // A unit is about half a nanosecond: the whole is at most a tenth of a second.
  explicit Work(int64_t units = 100'000'000) : left_(units) {}

  // False once more was asked for than there is, and ever after.
  bool spend(int64_t units) {
    left_ = left_ < units ? -1 : left_ - units;
    return left_ >= 0;
  }

 private:
  int64_t left_;
};

}  // namespace lockstep::rl
