// A teacher behind HTTP: a vLLM or Lockstep server that says how likely it finds the tokens of a prompt.
#pragma once

#include <chrono>
#include <string>

#include "net/http_client.h"
#include "rl/teacher.h"

namespace lockstep::rl {

struct HttpTeacherOptions {
  net::Address address;
  std::string model;                           // as the server calls it; empty: the first of GET /v1/models
  std::chrono::milliseconds timeout{120'000};  // of a sequence, attempts included
  int max_in_flight = 32;                      // sequences
};

// POST /v1/completions {"prompt": token ids, "prompt_logprobs": 0, "max_tokens": 1}: the sequence is the prompt, and
// the log-prob of each of its tokens is read from the answer. Servers report them at temperature 1. No answer, and the
// statuses 408, 429 and 5xx, are tried again after 0.1, 0.2 ... 5 s until the time is up.
class HttpTeacher : public Teacher {
 public:
  // ConfigError: `temperature`, of the actor's log-probs, is not 1, or the server answers no /v1/models.
  // ResourceError: it does not answer.
  HttpTeacher(HttpTeacherOptions options, float temperature);

  // ResourceError: the server did not answer a sequence in time. ConfigError: it refuses one. FormatError: an answer
  // without the log-prob of a token.
  std::vector<std::vector<float>> logprobs(std::span<const train::Datum> datums,
                                           const train::Progress& between) override;

 private:
  std::string first_model();

  HttpTeacherOptions options_;
  net::HttpClient client_;
};

// The log-prob of each row's target in a completion's "prompt_logprobs"; 0 where a row has no target. FormatError.
std::vector<float> read_prompt_logprobs(const std::string& body, const train::Datum& datum, const std::string& where);

}  // namespace lockstep::rl
