#include "server/http/byte_budget.h"

namespace lockstep::server {

bool ByteBudget::Share::take(size_t bytes, double part) {
  if (bytes == 0) return true;
  const auto most = static_cast<size_t>(part * static_cast<double>(limit_));
  for (size_t used = *used_;;) {
    const bool alone = used == bytes_;
    if (!alone && used + bytes > most) return false;
    if (used_->compare_exchange_weak(used, used + bytes)) break;
  }
  bytes_ += bytes;
  return true;
}

void ByteBudget::Share::become(size_t bytes) {
  *used_ += bytes - bytes_;  // modulo 2^N, whichever is larger
  bytes_ = bytes;
}

}  // namespace lockstep::server
