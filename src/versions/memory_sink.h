// Versions for an engine of this process: staging checks, committing is a pointer.
#pragma once

#include "rollout/engine.h"
#include "versions/sink.h"

namespace lockstep::versions {

class MemorySink final : public VersionSink {
 public:
  explicit MemorySink(rollout::Engine& engine) : engine_(engine) {}  // outlives the sink

  void stage(const Version& version) override;  // ConfigError, ShapeError, DeviceError as Engine::check
  void commit(const lora::PolicyId& policy) override;
  void abort(const lora::PolicyId& policy) noexcept override;
  void drop(const lora::PolicyId& policy) noexcept override;
  std::vector<lora::PolicyId> held() const override;

 private:
  rollout::Engine& engine_;
  std::vector<Version> staged_;
};

}  // namespace lockstep::versions
