// Whether servers generate with the adapter that they were given: nothing stale, nothing dropped.
//
// A server's log-probs of its samples are compared with those of our own model, whose forward is the trainer's.
//
// When a server arrives: its log-probs of the base must be ours, as far as another program's can be (`noise` is the
// difference that is left), at the temperature of the rollouts and not at 1. Then every target module in turn gets an
// adapter with a large known B, alone. The server must follow, which proves that the path, alpha and that module reach
// its model. Weights replace a server's base, which is therefore not looked at: one probe with every module comes
// first, and then the newest version, if the run has one. A server that arrives in the middle of a run must be nearer
// to the newest version than to the base and to the version before it.
//
// At each sync: the server must be nearer to the new version than to the one before (the first: than to the base).
// Where the trainer's two versions differ by less than kTimesNoise times the noise, that says nothing: it counts as
// inconclusive, and the next version is compared with the last one that was conclusive.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "rollout/remote/fleet.h"
#include "versions/sink.h"
#include "versions/version_writer.h"

namespace lockstep::versions {

// A server does not do what it was told, or what it said it did.
class ServerFault : public ResourceError {
  using ResourceError::ResourceError;
};

struct ServerCheckOptions {
  std::vector<std::vector<int32_t>> prompts;  // a few
  rollout::SamplingParams sampling;           // of rollouts: the temperature, above 0, and where they end
  int64_t tokens = 16;                        // of each answer
  double max_noise = 0.25;                    // mean |server - ours| on the base that is still taken for rounding
  fs::Path directory;                         // for the probes' files, which the servers can read
  VersionWriter write;                        // as versions are written and delivered
  rollout::Delivery delivery = rollout::Delivery::adapter_files;
  bool equal_weights = false;  // at each sync the servers' own checksums are compared
  // A server that says that its log-probs are those before the temperature is compared with the trainer's before it:
  // nothing else will read them.
  bool any_logprobs = false;
};

class ServerCheck {
 public:
  static constexpr double kTimesNoise = 4;

  // The fleet and the stream outlive it.
  ServerCheck(rollout::Fleet& fleet, ServerCheckOptions options, std::shared_ptr<const model::Model> model,
              Stream& stream);

  // `like`: an adapter of the run; of its weights B is not used. A server that comes back in the middle of a run must
  // also compute the version of the last sync, which it has loaded. ServerFault naming the server and the module.
  void at_arrival(size_t server, const lora::AdapterVersion& like);
  // Whether its log-probs are those before the temperature (raw) or after it (tempered), from the base's answer to one
  // prompt at temperature 0.7; nothing if the two differ by less than kTimesNoise times what is left. ServerFault: they
  // are neither.
  std::optional<rollout::LogprobKind> measured_logprobs(size_t server);
  // Every server that is up, which has loaded the version. With equal_weights its checksums also are those of the other
  // servers, and where adapters are delivered, those that it had before: an adapter leaves the base as it is.
  // ServerFault.
  void at_sync(const Version& version);

  struct Report {
    double noise = 0;  // mean |server - ours| on the base, of the worst server
    int64_t conclusive = 0, inconclusive = 0;
    int64_t checksums = 0, blind_checksums = 0;  // of one server at the last sync; of them, of tensors without a byte
  };
  const Report& report() const { return report_; }

 private:
  struct Scored {                 // a sample
    std::vector<int32_t> tokens;  // prompt and answer
    int64_t prompt = 0;           // how many of them are the prompt
    std::vector<float> logprobs;  // of the answer, as the server reported them
  };
  using Logprobs = std::vector<std::vector<float>>;  // of each sample's answer
  struct Distance {
    double from_wanted = 0, from_other = 0, between = 0;
  };
  struct Asked {  // by default the base
    lora::PolicyId policy = {};
    std::string name = {};  // of the adapter at servers; empty: weights have taken the base's place
  };
  std::vector<Scored> sample(size_t server, const Asked& asked);
  std::vector<std::optional<std::vector<Scored>>> sample_each(const Asked& asked);
  Scored sample_one(size_t server, const Asked& asked, size_t prompt, rollout::SamplingParams sampling);
  Logprobs score(std::span<const Scored> samples, const lora::AdapterVersion* adapter, float temperature) const;
  float logprob_temperature(size_t server) const;
  Distance distance(size_t server, std::span<const Scored> samples, const lora::AdapterVersion* wanted,
                    const lora::AdapterVersion* other) const;
  bool says_nothing(const Distance& distance) const;
  void compare_base(size_t server, std::span<const Scored> base);
  void compare_newest(size_t server);
  void compare_checksums();
  void compare_first(const Version& version);
  void probe(size_t server, const lora::AdapterVersion& like, const std::string& leaf, std::span<const Scored> base);
  std::string where(size_t server) const;

  rollout::Fleet& fleet_;
  const ServerCheckOptions options_;
  const std::shared_ptr<const model::Model> model_;
  Stream& stream_;
  bool synced_ = false;
  Version last_;               // that a sync was conclusive about; none: the base
  Version newest_, previous_;  // of the last sync, and what last_ was then
  Report report_;
  int64_t probes_ = 0;
  std::map<std::string, std::string> checksums_;  // of the base
};

}  // namespace lockstep::versions
