#include "train/lane_range.h"

#include <bit>
#include <string>

#include "core/error.h"

namespace lockstep::train {

void require_even_lanes(int64_t lanes, int64_t ranks) {
  if (lanes % ranks == 0) return;
  const auto fewer = std::bit_floor(static_cast<uint64_t>(ranks));
  const char* const more_lanes = lanes < kMaxGradientLanes ? ", or more lanes, which decide bits" : "";
  throw ConfigError({.what = "the gradient lanes cannot be dealt out evenly",
                     .where = "TrainerOptions::gradient_lanes",
                     .got = std::to_string(lanes) + " lanes for " + std::to_string(ranks) + " ranks",
                     .wanted = "a number of ranks that divides the lanes",
                     .attempt = ranks < lanes ? std::to_string(fewer) + " or " + std::to_string(2 * fewer) + " ranks"
                                              : std::to_string(lanes) + " ranks" + more_lanes});
}

LaneRange lanes_of(const parallel::Group& group, int lanes) {
  if (lanes < kGradientLanes || lanes > kMaxGradientLanes || !std::has_single_bit(static_cast<unsigned>(lanes)))
    throw ConfigError({.what = "impossible number of gradient lanes",
                       .where = "TrainerOptions::gradient_lanes",
                       .got = std::to_string(lanes),
                       .wanted = "8, 16, 32 or 64"});
  const int ranks = group.size();
  require_even_lanes(lanes, ranks);
  const int each = lanes / ranks;
  return {.begin = group.rank() * each, .end = (group.rank() + 1) * each, .of = lanes};
}

int lane_of(int64_t sample, int64_t num_samples, int lanes) {
  int lane = 0;
  while (sample >= (lane + 1) * num_samples / lanes) ++lane;
  return lane;
}

SampleRange samples_of(const LaneRange& range, int64_t num_samples) {
  return {.begin = range.begin * num_samples / range.of, .end = range.end * num_samples / range.of};
}

}  // namespace lockstep::train
