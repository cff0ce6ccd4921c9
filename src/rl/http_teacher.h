// A teacher behind HTTP: a vLLM, Lockstep or SGLang server that says how likely it finds the tokens of a prompt.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "net/http_client.h"
#include "rl/teacher.h"

namespace lockstep::rl {

struct HttpTeacherOptions {
  net::Address address;  // with a path that ends with /generate it is asked as SGLang is (rl/teacher_dialect.h)
  std::string model;     // as the server calls it; empty: the first of GET /v1/models. Not asked of SGLang
  std::chrono::milliseconds timeout{120'000};  // of a sequence, attempts included
  int max_in_flight = 32;                      // sequences
  bool per_position = false;                   // SequenceQuestion::per_position
};

// One request a sequence. Servers report log-probs at temperature 1. No answer, and the statuses 408, 429 and 5xx, are
// tried again after 0.1, 0.2 ... 5 s until the time is up.
class HttpTeacher : public Teacher {
 public:
  // ConfigError: `temperature`, of the actor's log-probs, is not 1, or the server answers no /v1/models.
  // ResourceError: it does not answer.
  HttpTeacher(HttpTeacherOptions options, float temperature);

  // ResourceError: the server did not answer a sequence in time. ConfigError: it refuses one, or is asked for
  // candidates, which only SGLang's dialect has. FormatError: an answer without the log-prob of a token.
  std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress& between) override;

 private:
  std::string first_model();

  HttpTeacherOptions options_;
  net::HttpClient client_;
};

// Several teachers by name. A datum whose name is none of them gets that of "default".
class NamedTeachers : public Teacher {
 public:
  explicit NamedTeachers(std::map<std::string, std::unique_ptr<Teacher>> teachers) : teachers_(std::move(teachers)) {}
  // One teacher after the other. DataError: a name that there is no teacher for, without a default.
  std::vector<train::RowOutputs> answer(const TeacherQuestion& question, const train::Progress& between) override;
  void release_memory() override;

 private:
  std::map<std::string, std::unique_ptr<Teacher>> teachers_;
};

}  // namespace lockstep::rl
