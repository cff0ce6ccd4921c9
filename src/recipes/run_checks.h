// Assertions that a run is asked for: what must hold of every rollout, or the run fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/error.h"

namespace lockstep {
class Stream;
namespace lora {
struct AdapterVersion;
}
namespace model {
class Model;
}
}  // namespace lockstep

namespace lockstep::recipes {

// A check of a run failed. The iteration that failed it is complete, and is saved like any other.
class CheckError : public Error {
 public:
  using Error::Error;
  const char* kind() const override { return "CheckError"; }
  int exit_code() const override { return 8; }
};

struct RunChecks {
  // Most that the trainer's log-probs may differ from the sampler's, as slime measures it: the mean of |difference|
  // over the first batch of a rollout, weighted as its loss.
  std::optional<double> logprob_diff;
  bool equal_logprobs = false;   // no token's may differ
  bool equal_reference = false;  // the KL of the first rollout of a fresh run to the reference, if there is one, is 0
  bool equal_adapter = false;    // what is published is the trainer's adapter, byte for byte
  bool equal_base = false;       // the base in memory is the same at the end as at the start, byte for byte

  bool equal_servers = false;  // servers' own checksums of their weights agree at each sync (versions/server_check.h)

  bool reads_logprobs() const { return logprob_diff.has_value() || equal_logprobs; }
};

// Of one rollout, when it has been trained on.
struct RolloutFacts {
  int64_t rollout = 0;                                             // from 1
  std::optional<double> logprob_diff = {}, logprob_diff_max = {};  // nothing: not measured, which fails what reads it
  std::optional<double> kl = {};                                   // to the reference
};

// Each throws CheckError.
void check_rollout(const RunChecks& checks, const RolloutFacts& facts);
void check_published(const RunChecks& checks, const lora::AdapterVersion& trained,
                     const lora::AdapterVersion& published, Stream& stream);

// Of the base; hashes its memory at the start and at the end, if that is asked for.
class BaseCheck {
 public:
  BaseCheck(const RunChecks& checks, const model::Model& model, Stream& stream);
  void at_end() const;

 private:
  const model::Model& model_;
  Stream& stream_;
  std::string fingerprint_;  // empty: not asked for
};

}  // namespace lockstep::recipes
