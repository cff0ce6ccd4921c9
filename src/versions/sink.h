// Who receives published versions: an engine in this process, and whatever else may hold adapters.
#pragma once

#include <memory>
#include <vector>

#include "lora/adapter.h"

namespace lockstep::versions {

using Version = std::shared_ptr<const lora::AdapterVersion>;

// A Store calls one method at a time: stage, then commit or abort, and drop some day.
class VersionSink {
 public:
  virtual ~VersionSink() = default;

  // Brings the version to where it will be used and checks it there. Nobody can ask for it yet, and what was held
  // before is untouched. What it throws leaves nothing behind. ConfigError: this id is already held.
  virtual void stage(const Version& version) = 0;
  // From now on what was staged can be asked for. If it throws, the version is still only staged.
  virtual void commit(const lora::PolicyId& policy) = 0;
  virtual void abort(const lora::PolicyId& policy) noexcept = 0;  // forgets what was staged
  // The version can no longer be asked for; whatever uses it keeps it to its end.
  virtual void drop(const lora::PolicyId& policy) noexcept = 0;
  virtual std::vector<lora::PolicyId> held() const = 0;  // what can be asked for
};

}  // namespace lockstep::versions
