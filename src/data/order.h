// The order in which a run reads its rows: an endless row of epochs, each in file order or shuffled by (seed, epoch).
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

// A pure function of its arguments (the last epoch's order is remembered), so that a resumed run needs no other data
// position than the number of rows read before it.
class DataOrder {
 public:
  DataOrder(int64_t num_rows, bool shuffle, uint64_t seed) : num_rows_(num_rows), shuffle_(shuffle), seed_(seed) {}

  std::vector<int64_t> rows(int64_t position, int64_t count);  // rows of places position .. position + count - 1

 private:
  int64_t num_rows_;
  bool shuffle_;
  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_
};

}  // namespace lockstep::data
