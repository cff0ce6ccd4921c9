// Versions for an engine of this process: staging checks, committing is a pointer.
#pragma once

#include "rollout/local/held_versions.h"
#include "versions/sink.h"

namespace lockstep::versions {

class MemorySink final : public VersionSink {
 public:
  explicit MemorySink(rollout::HeldVersions& versions) : versions_(versions) {}  // of an engine that outlives the sink

  void stage(const Version& version) override;  // ConfigError, ShapeError, DeviceError as HeldVersions::check
  void commit(const lora::PolicyId& policy) override;
  void abort(const lora::PolicyId& policy) noexcept override;
  void drop(const lora::PolicyId& policy) noexcept override;
  std::vector<lora::PolicyId> held() const override;

 private:
  rollout::HeldVersions& versions_;
  std::vector<Version> staged_;
};

}  // namespace lockstep::versions
