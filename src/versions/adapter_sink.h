// Versions for servers that read adapters from files: each version has a directory and a name of its own, and neither
// is ever used again. vLLM finds cached keys by an adapter's name, and reads a name that was replaced in place from
// disk at every step.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "rollout/remote/fleet.h"
#include "versions/rollout_copy.h"
#include "versions/sink.h"

namespace lockstep::versions {

struct AdapterSinkOptions {
  fs::Path directory;             // of the adapters' files, which the servers can read; made if it is missing
  std::string name = "lockstep";  // what servers call a version: NAME-RUN-vN, where RUN is of this run alone
  CopyOptions copy;
};

class AdapterSink final : public VersionSink {
 public:
  // Called when every server that is up has loaded a version and before it can be asked for; may throw.
  using OnStaged = std::function<void(const Version& version)>;

  // The fleet, whose servers take as many adapters as the store keeps and one more, and the stream outlive it.
  AdapterSink(rollout::Fleet& fleet, AdapterSinkOptions options, Stream& stream, OnStaged on_staged = {});
  ~AdapterSink() override;  // unloads what is held and removes its files

  // Writes the files, has every server load them. What Fleet::load throws; ResourceError: the disk is full.
  void stage(const Version& version) override;
  void commit(const lora::PolicyId& policy) override;
  void abort(const lora::PolicyId& policy) noexcept override;
  // The name goes at once; the files one drop later, since servers open them when they please.
  void drop(const lora::PolicyId& policy) noexcept override;
  std::vector<lora::PolicyId> held() const override { return held_; }

 private:
  void forget(const lora::PolicyId& policy) noexcept;
  void remove(const fs::Path& directory) noexcept;

  rollout::Fleet& fleet_;
  const AdapterSinkOptions options_;
  Stream& stream_;
  const OnStaged on_staged_;
  const std::string run_;
  std::vector<lora::PolicyId> held_;
  std::deque<fs::Path> leaving_;  // directories whose names are gone
};

}  // namespace lockstep::versions
