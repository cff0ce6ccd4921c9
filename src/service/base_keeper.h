// Whose weights a Serving answers with: the base it began with, or one that a client brought since; and whether they,
// and the memory of keys and values, are there at all.
//
// A new base is staged beside the one in use, checked, and then swapped between two steps of the engine. Requests in
// flight finish on theirs. Adapters are read again on the new one (AdapterRegistry::rebase).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "load/updated_base.h"
#include "model/weights_update.h"
#include "service/serving.h"

namespace lockstep::service {

class BaseKeeper {
 public:
  // `serving` outlives it. Directories are read below `weights_root` only; empty: none is.
  BaseKeeper(Serving& serving, std::string weights_root);
  ~BaseKeeper();

  struct Report {
    int64_t base_version = 0;
    int64_t missing = 0;  // tensors that must still come until there is a base to answer with
    std::vector<AdapterRegistry::Outdated> outdated;
  };
  // Blocks the calling thread, not the engine. An empty path is the directory that the base came from, wherever that
  // is. `label`: what weight_version says from then on; empty: the base version's number. Errors change nothing: ConfigError (a path outside the root), and those of load::updated_base.
  Report load_directory(const std::string& path, const std::string& label);
  // Some tensors or all, in host memory. While there is no base, they are kept until every tensor has come.
  Report load_tensors(const NamedTensors& tensors, const std::string& label, const std::string& where);

  std::string label() const;  // "default": the base it began with
  void set_label(std::string label);

  // NoBase while there are no weights.
  model::HostTensor read(const std::string& name, int64_t rows) const;  // FormatError: no such tensor
  std::vector<load::TensorHash> checksums() const;
  void take_snapshot();                            // of the checksums
  std::vector<std::string> changed_since() const;  // names; ConfigError: no snapshot was taken

  // What has been given back. Level 1: keys and scratch; on a GPU also the weights, which go to host memory. Level 2:
  // the weights are gone, and submit() throws NoBase until all of them have come again. Both end requests in flight,
  // and pause. Nothing where something sleeps already that is asked for.
  enum class Part { weights, keys };
  void release(Part part, bool for_good = false);
  void resume(Part part);  // weights that are gone for good stay away
  bool is_released(Part part) const;

 private:
  Report swap(load::Base next, const std::string& label);
  void keep(const NamedTensors& tensors);
  const load::Base& whole(const std::shared_ptr<const load::Base>& base) const;

  Serving& serving_;
  const std::string weights_root_;
  mutable std::mutex working_;  // one update at a time
  std::unique_ptr<Stream> stream_;
  lora::BaseVersion newest_;
  std::optional<load::Base> on_host_;        // while a GPU's weights are released
  std::vector<model::HostTensor> arriving_;  // while there is no base
  std::vector<load::TensorHash> snapshot_;

  mutable std::mutex state_;  // of what follows
  std::string label_ = "default";
  bool keys_released_ = false, weights_released_ = false;
};

}  // namespace lockstep::service
