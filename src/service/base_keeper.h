// The base weights that a Serving generates with: those it began with, or others that a client has sent since. It also
// gives the weights, and the memory of keys and values, back for a while and takes them again (/sleep, /wake_up).
//
// A new base is loaded beside the one in use, checked, and then put in its place between two steps of the engine.
// Requests in flight finish on the base that they began with. Adapters are loaded again on the new one
// (AdapterRegistry::rebase).
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
  // `serving` outlives it. Only directories below `weights_root` are read; empty: none.
  BaseKeeper(Serving& serving, std::string weights_root);
  ~BaseKeeper();

  struct Report {
    int64_t base_version = 0;
    int64_t missing = 0;  // tensors that must still come until there is a base to answer with
    std::vector<AdapterRegistry::Outdated> outdated;
  };
  // Blocks the calling thread, not the engine. An empty path is the directory that the base came from, wherever that
  // is. `label`: what weight_version says from then on; empty: the base version's number. Errors change nothing:
  // ConfigError (a path outside the root), and those of load::updated_base.
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

  // Gives memory back, after ending the requests in flight and pausing. Keys: keys, values and scratch memory. Weights:
  // those of a GPU move to host memory; `for_good`: they are freed, and submit() throws NoBase until all of them have
  // been sent again. What is released already stays so.
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
