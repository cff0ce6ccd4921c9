#include "data/order.h"

#include "core/random.h"

namespace lockstep::data {

std::vector<int64_t> DataOrder::rows(int64_t position, int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t at = position; at < position + count; ++at) {
    const int64_t epoch = at / num_rows_, place = at % num_rows_;
    if (shuffle_ && epoch != epoch_) {
      order_ = permutation(num_rows_, seed_, static_cast<uint64_t>(epoch));
      epoch_ = epoch;
    }
    rows.push_back(shuffle_ ? order_[static_cast<size_t>(place)] : place);
  }
  return rows;
}

}  // namespace lockstep::data
