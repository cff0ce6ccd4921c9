// Versions for servers that read files: as adapters, each with a directory and a name of its own of which neither is
// ever used again (vLLM finds cached keys by an adapter's name, and reads a name that was replaced in place from disk
// at every step), or as whole models with the adapter merged into them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rollout/remote/fleet.h"
#include "versions/sink.h"
#include "versions/version_writer.h"

namespace lockstep::versions {

struct AdapterSinkOptions {
  fs::Path directory;             // of the adapters' files, which the servers can read; made if it is missing
  std::string name = "lockstep";  // what servers call a version: NAME-RUN-vN, where RUN is of this run alone
  VersionWriter write;            // what the directory of a version holds
  rollout::Delivery delivery = rollout::Delivery::adapter_files;
};

class AdapterSink final : public VersionSink {
 public:
  // Called when every server that is up has loaded a version and before it can be asked for; may throw.
  using OnStaged = std::function<void(const Version& version)>;

  // The fleet, whose servers take as many adapters as the store keeps and one more, outlives it.
  AdapterSink(rollout::Fleet& fleet, AdapterSinkOptions options, OnStaged on_staged = {});
  ~AdapterSink() override;  // unloads what is held and removes its files

  // Writes the files, has every server load them. While files cannot be written (a full disk) it tells so and tries
  // again, for FleetOptions::outage_timeout. What Fleet::load throws; ResourceError: it could not be written. A run
  // that is being stopped waits for neither disk nor server.
  void stage(const Version& version) override;
  void commit(const lora::PolicyId& policy) override;
  void abort(const lora::PolicyId& policy) noexcept override;
  // The name goes when the requests that have begun are answered; an adapter's files at the drop after that, since
  // servers open them when they please.
  void drop(const lora::PolicyId& policy) noexcept override;
  std::vector<lora::PolicyId> held() const override;

 private:
  bool write(const fs::Path& directory, const Version& version) const;
  void forget(const lora::PolicyId& policy) noexcept;
  void remove(const fs::Path& directory) noexcept;

  rollout::Fleet& fleet_;
  const AdapterSinkOptions options_;
  const OnStaged on_staged_;
  const std::string run_;
  struct Place {
    lora::PolicyId policy;
    fs::Path directory;
    bool committed = false;
  };
  std::vector<Place> places_;
  std::vector<Place> leaving_;  // that were dropped
};

}  // namespace lockstep::versions
