// Versions as directories for anyone else's engine: DIR/vN is a PEFT adapter with a file STABLE in it once it is whole,
// DIR/latest a link to the newest.
#pragma once

#include <vector>

#include "versions/patient_write.h"
#include "versions/rollout_copy.h"
#include "versions/sink.h"

namespace lockstep::versions {

class DirectorySink final : public VersionSink {
 public:
  // `keep`: how many of the newest versions stay. What an earlier run has left in the directory goes with the first
  // version of this one: a run that goes on from a checkpoint may have published newer ones before. The stream outlives
  // it. ResourceError: it cannot be written to.
  DirectorySink(fs::Path directory, int64_t keep, CopyOptions copy, Stream& stream, Patience patience = {});

  void stage(const Version& version) override;
  void commit(const lora::PolicyId& policy) override;
  void abort(const lora::PolicyId& policy) noexcept override;
  void drop(const lora::PolicyId& policy) noexcept override;
  std::vector<lora::PolicyId> held() const override { return held_; }

 private:
  fs::Path place(const lora::PolicyId& policy) const;
  void remove_earlier(const fs::Path& parent, const lora::PolicyId& policy) const;

  const fs::Path directory_;
  const int64_t keep_;
  const CopyOptions copy_;
  Stream& stream_;
  const Patience patience_;
  bool written_ = false;                     // what is staged
  std::vector<lora::PolicyId> held_, kept_;  // kept_: dropped, but not removed yet, the oldest first
};

}  // namespace lockstep::versions
