// The HTTP requests that a server of vLLM, SGLang or Lockstep understands, and what its answers mean. It makes and
// parses texts; it opens no connection.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_client.h"
#include "rollout/remote/engine_kind.h"
#include "rollout/request.h"
#include "rollout/sampler.h"

namespace lockstep::rollout {

// What a server reports about itself; a field without a value was not reported.
struct ServerFacts {
  std::string model;  // what requests call the base
  std::string version;
  std::optional<int64_t> max_model_len;
  std::optional<int64_t> max_loras, max_lora_rank, data_parallel;
  std::optional<bool> lora_enabled;
  std::optional<LogprobKind> logprobs;
  std::string device;          // "cpu", "cuda"; empty: not said
  bool seeds_samples = false;  // SGLang: it draws each sample from a seed, and knows the field that brings one
  bool quantized = false;
  std::string weight_version;         // what it calls its weights; empty: nothing, or it does not say
  std::vector<std::string> adapters;  // loaded now
  std::string hello;                  // Lockstep: build, base and device, as one text
};

// One sample of an answer.
struct RemoteSample {
  std::vector<int32_t> tokens;  // with the stop token if one ended it
  std::vector<float> logprobs;  // of each
  FinishReason finish = FinishReason::length;
  int64_t stop_index = -1;
  bool aborted = false;  // somebody ended it before its time; it may be empty
};

struct RemoteAnswer {
  std::vector<RemoteSample> samples;  // n of them
  int64_t cached_tokens = 0;
};

// Servers report merged weights of ours under a name that begins so: their base is not the one they were started with.
inline constexpr const char* kWeightsPrefix = "lockstep-merged-v";

class Dialect {
 public:
  virtual ~Dialect() = default;

  // Requests whose answers say what the server is; an answer that is not ok() is a server that does not say.
  virtual std::vector<std::string> fact_paths() const = 0;
  // Of one of these, in their order. FormatError: the answer is not what the dialect has there.
  virtual void read_facts(const std::string& path, const std::string& body, ServerFacts& facts) const = 0;

  // Asks for the samples of a request by the adapter of this name (empty: the base). Every field that decides what is
  // drawn is sent. Greedy samples are all alike: one is asked for.
  virtual net::HttpRequest generate(const SampleRequest& request, const std::string& adapter,
                                    const ServerFacts& facts) const = 0;
  // Why requests bring no seed, so that samples cannot be drawn again; empty: they bring one.
  virtual std::string without_seed(const ServerFacts& facts) const = 0;
  // FormatError: what is missing or of another length, or made by another version of the adapter than the request's,
  // where servers say so. The number of samples is the request's.
  virtual RemoteAnswer read_answer(const std::string& body, const SampleRequest& request) const = 0;
  // The message of an answer that is not ok().
  virtual std::string error_text(const net::HttpAnswer& answer) const = 0;
  // Whether an answer says that it does not know the adapter.
  virtual bool lacks_adapter(const net::HttpAnswer& answer, const std::string& adapter) const = 0;

  // `version`: the number that a Lockstep server gives it, with which requests name it; others have no numbers.
  virtual net::HttpRequest load(const std::string& name, const std::string& directory, int64_t version) const = 0;
  virtual net::HttpRequest unload(const std::string& name) const = 0;
  // The same with the tensors in the request: `tensors` is what a pickle of them says in base64, and the adapter's
  // config (versions/tensor_payload.h). ConfigError: servers of this kind take files only.
  virtual net::HttpRequest load_tensors(const std::string& name, const std::string& tensors) const;
  // Has the weights of a model's directory take the place of the base, and drops keys of those before: requests to be
  // answered one after the other. ConfigError: servers of this kind have no such route.
  virtual std::vector<net::HttpRequest> load_weights(const std::string& directory, const std::string& name) const;
  // Has the server remember after load_weights whose weights it has (ServerFacts::weight_version); nothing:
  // load_weights said so. A server without this route only forgets it.
  virtual std::optional<net::HttpRequest> mark_weights(const std::string& name) const;
  // Before and after load_weights, where requests are running: ends them with what they have, or holds them.
  virtual net::HttpRequest pause(bool abort) const;
  virtual net::HttpRequest resume() const;
  // Asks for checksums of the weights, and reads them, by the server's names. Nothing: servers of this kind have none.
  virtual std::optional<net::HttpRequest> checksums() const { return std::nullopt; }
  virtual std::map<std::string, std::string> read_checksums(const std::string& body) const;
  // Of load, unload, and these. Statuses differ between versions of a server: what is not a success is a failure.
  virtual bool succeeded(const net::HttpAnswer& answer) const { return answer.ok(); }
};

std::unique_ptr<const Dialect> make_dialect(EngineKind kind);

}  // namespace lockstep::rollout
