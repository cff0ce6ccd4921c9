// Who receives published versions: an engine in this process, and whatever else may hold adapters.
#pragma once

#include <memory>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::versions {

using Version = std::shared_ptr<const lora::AdapterVersion>;

// A place to which a Store publishes versions. The Store calls one method at a time. Publishing a version is stage(),
// then commit() or, if another sink failed, abort(); drop() follows when no one should use the version any more.
class VersionSink {
 public:
  virtual ~VersionSink() = default;

  // Copies the version to where it will be used and checks the copy. Requests cannot name it yet, and versions that are
  // held stay as they are. If this throws, nothing of the new version is left. ConfigError: this id is already held.
  virtual void stage(const Version& version) = 0;
  // Makes the staged version available to requests. If it throws, the version is still only staged.
  virtual void commit(const lora::PolicyId& policy) = 0;
  virtual void abort(const lora::PolicyId& policy) noexcept = 0;  // removes a staged version
  // New requests cannot name the version any more; requests that are running finish with it.
  virtual void drop(const lora::PolicyId& policy) noexcept = 0;
  virtual std::vector<lora::PolicyId> held() const = 0;  // versions that requests can name
};

}  // namespace lockstep::versions
