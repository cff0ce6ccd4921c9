// sync: adapter versions and how they travel.
//
//   includes    core, lora, checkpoint, parallel, rollout
//   memory      a published version is the buffer the optimizer wrote; nobody copies it
//   threads     publish from the training thread, between rollouts
//
// This header: in memory, in one process.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout/engine.h"

namespace lockstep::sync {

struct PublishReport {
  int64_t version = 0;
  double microseconds = 0;
  // Growth of live_bytes() on all devices: 0, because every engine shares the optimizer's own buffer.
  int64_t bytes_copied = 0;
};

// Numbers versions without gaps and hands each to every engine. A publish either reaches all engines or throws and
// reaches none.
class Publisher {
 public:
  explicit Publisher(int64_t next_version) : next_version_(next_version) {}
  void add(rollout::Engine& engine);                    // outlives the publisher; ConfigError when added twice
  PublishReport publish(lora::AdapterVersion adapter);  // its number is set here
  int64_t next_version() const { return next_version_; }

 private:
  int64_t next_version_;
  std::vector<rollout::Engine*> engines_;
};

}  // namespace lockstep::sync
