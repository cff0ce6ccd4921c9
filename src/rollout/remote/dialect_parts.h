// What dialects share. Internal to rollout/remote.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "rollout/remote/dialect.h"

namespace lockstep::rollout {

// What a library of JSON throws about types becomes an error of ours.
template <class Read>
auto reading(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    throw FormatError({.what = "a server's answer has another shape", .where = where, .got = error.what()});
  }
}

inline constexpr const char* kModelsPath = "/v1/models";
// The base and the adapters that are loaded.
void read_models(const Json& json, ServerFacts& facts);
std::optional<int64_t> integer_at(const Json& object, const char* key);

bool is_greedy(const SamplingParams& params);
int64_t asked_samples(const SampleRequest& request);  // greedy: 1
// max_tokens within max_context of the request and the server's; at least 1.
int64_t asked_tokens(const SampleRequest& request, const ServerFacts& facts);
// A seed that no other prompt of the run has, below 2^31; `sample`: of one sample of the request.
int64_t request_seed(const SampleRequest& request, int64_t sample = 0);

net::HttpRequest post_json(const std::string& path, const OrderedJson& body);
// Lists of one length, or FormatError naming `where`; the log-prob of a token that cannot come is a large negative
// number in JSON, and -infinity here.
RemoteSample checked_sample(std::vector<int32_t> tokens, std::vector<float> logprobs, const std::string& where,
                            bool may_be_empty = false);
// FormatError: a token that a vocabulary of this size does not have; 0: it is not known.
void check_vocabulary(std::span<const int32_t> tokens, int64_t vocab_size);
// The one sample of a greedy request, as often as it asked.
void repeat_greedy(const SampleRequest& request, RemoteAnswer& answer);
void check_count(const SampleRequest& request, const RemoteAnswer& answer, const std::string& where);
int64_t stop_index_of(const SamplingParams& params, const std::string& stop);
// {"error": {"message"}}, {"message"}, {"error": text}, {"detail"}, or the first bytes.
std::string message_of(const net::HttpAnswer& answer);

}  // namespace lockstep::rollout
