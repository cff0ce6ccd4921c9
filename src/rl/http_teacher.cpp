#include "rl/http_teacher.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "core/json.h"
#include "rl/http_retry.h"
#include "rl/score_json.h"

namespace lockstep::rl {

namespace {

using Clock = std::chrono::steady_clock;

// The whole sequence: what the rows read, and the target of the last.
std::vector<int32_t> sequence_of(const train::Datum& datum) {
  std::vector<int32_t> tokens = datum.tokens;
  if (!datum.targets.empty() && datum.targets.back() >= 0) tokens.push_back(datum.targets.back());
  return tokens;
}

struct Job {
  size_t datum = 0;
  int attempts = 0;
  Clock::time_point first_sent = {}, due = {};
};

// The sequences of one call on their way.
class Questions {
 public:
  Questions(const HttpTeacherOptions& options, net::HttpClient& client, std::span<const train::Datum> datums)
      : options_(options), client_(client), datums_(datums), answers_(datums.size()) {
    for (size_t i = 0; i < datums.size(); ++i) waiting_.push_back({.datum = i});
  }
  ~Questions() {
    for (const auto& [number, sent] : sent_) client_.cancel(sent.second);
  }
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  std::vector<std::vector<float>> run(const train::Progress& between) {
    while (done_ < datums_.size()) {
      pump();
      wait();
      for (auto& [number, outcome] : arrived()) take(number, std::move(outcome));
      if (between) between(static_cast<int64_t>(done_));
    }
    return std::move(answers_);
  }

 private:
  void pump() {
    const Clock::time_point now = Clock::now();
    for (size_t left = waiting_.size(); left > 0 && std::ssize(sent_) < options_.max_in_flight; --left) {
      Job job = waiting_.front();
      waiting_.pop_front();
      if (job.due > now)
        waiting_.push_back(job);
      else
        send(job);
    }
  }

  void send(Job job) {
    const Clock::time_point now = Clock::now();
    if (job.attempts++ == 0) job.first_sent = now;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(job.first_sent + options_.timeout - now);
    net::HttpRequest request{.method = "POST",
                             .path = "/v1/completions",
                             .body = json_text(OrderedJson{{"model", options_.model},
                                                           {"prompt", sequence_of(datums_[job.datum])},
                                                           {"max_tokens", 1},
                                                           {"temperature", 0},
                                                           {"add_special_tokens", false},
                                                           {"prompt_logprobs", 0}}),
                             .connect_timeout = left,
                             .timeout = left};
    const uint64_t number = next_++;
    const net::HttpClient::Id id =
        client_.send(options_.address, std::move(request), [inbox = inbox_, number](net::HttpClient::Outcome outcome) {
          const std::lock_guard lock(inbox->mutex);
          inbox->arrivals.emplace_back(number, std::move(outcome));
          inbox->came.notify_all();
        });
    sent_[number] = {job, id};
  }

  // A tenth of a second at most, so that the caller can interrupt.
  void wait() {
    std::unique_lock lock(inbox_->mutex);
    inbox_->came.wait_for(lock, std::chrono::milliseconds(100), [&] { return !inbox_->arrivals.empty(); });
  }

  using Arrival = std::pair<uint64_t, net::HttpClient::Outcome>;
  std::vector<Arrival> arrived() {
    const std::lock_guard lock(inbox_->mutex);
    return std::exchange(inbox_->arrivals, {});
  }

  void take(uint64_t number, net::HttpClient::Outcome outcome) {
    const Job job = sent_.at(number).first;
    sent_.erase(number);
    const std::string where = options_.address.text() + "/v1/completions";
    const auto* answer = std::get_if<net::HttpAnswer>(&outcome);
    if (answer != nullptr && answer->ok()) {
      answers_[job.datum] = read_prompt_logprobs(answer->body, datums_[job.datum], where);
      ++done_;
    } else if (answer != nullptr && !may_pass(answer->status)) {
      throw ConfigError({.what = "the teacher refuses a sequence",
                         .where = where,
                         .got = fmt::format("status {}: {}", answer->status, excerpt(answer->body))});
    } else {
      again(job, answer != nullptr ? fmt::format("status {}: {}", answer->status, excerpt(answer->body))
                                   : "no connection, or no answer in time");
    }
  }

  void again(Job job, const std::string& failure) {
    job.due = Clock::now() + pause_after(job.attempts);
    if (job.due - job.first_sent >= options_.timeout)
      throw ResourceError(
          {.what = "the teacher does not answer",
           .where = options_.address.text(),
           .got = fmt::format("{} after {} attempts in {} ms", failure, job.attempts, options_.timeout.count()),
           .attempt = "start it again, and resume the run"});
    waiting_.push_back(job);
  }

  struct Inbox {
    std::mutex mutex;
    std::condition_variable came;
    std::vector<Arrival> arrivals;
  };

  const HttpTeacherOptions& options_;
  net::HttpClient& client_;
  const std::span<const train::Datum> datums_;
  std::vector<std::vector<float>> answers_;
  std::deque<Job> waiting_;
  std::map<uint64_t, std::pair<Job, net::HttpClient::Id>> sent_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  uint64_t next_ = 0;
  size_t done_ = 0;
};

}  // namespace

std::vector<float> read_prompt_logprobs(const std::string& body, const train::Datum& datum, const std::string& where) {
  const auto refuse = [&](const std::string& got) {
    throw FormatError({.what = "the teacher's answer has no log-probs of the prompt",
                       .where = where,
                       .got = got,
                       .wanted = "choices[0].prompt_logprobs with every token of the prompt",
                       .attempt = "a vLLM or Lockstep server that allows prompt_logprobs"});
  };
  const Json json = parse_json(body, where);
  const Json* choice =
      json.is_object() && json.contains("choices") && json["choices"].is_array() && !json["choices"].empty()
          ? &json["choices"][0]
          : nullptr;
  if (choice == nullptr || !choice->is_object() || !choice->contains("prompt_logprobs")) refuse(excerpt(body));
  const Json& tokens = (*choice)["prompt_logprobs"];
  if (!tokens.is_array() || tokens.size() != sequence_of(datum).size())
    refuse(tokens.is_array() ? fmt::format("{} tokens instead of {}", tokens.size(), sequence_of(datum).size())
                             : excerpt(json_text(tokens)));
  std::vector<float> logprobs(datum.tokens.size());
  for (size_t t = 0; t < logprobs.size(); ++t) {
    if (datum.targets[t] < 0) continue;
    const Json& likely = tokens[t + 1];
    const std::string id = std::to_string(datum.targets[t]);
    if (!likely.is_object() || !likely.contains(id) || !likely[id].is_object() || !likely[id].contains("logprob") ||
        !likely[id]["logprob"].is_number())
      refuse(fmt::format("token {} at place {}: {}", id, t + 1, excerpt(json_text(likely))));
    logprobs[t] = likely[id]["logprob"].get<float>();
  }
  return logprobs;
}

HttpTeacher::HttpTeacher(HttpTeacherOptions options, float temperature)
    : options_(std::move(options)), client_(static_cast<size_t>(options_.max_in_flight)) {
  if (temperature != 1)
    throw ConfigError(
        {.what = "servers report log-probs at temperature 1, and the teacher's are compared with the actor's",
         .where = "sampling.temperature",
         .got = fmt::format("{:g}", temperature),
         .wanted = "1, or a teacher in this process"});
  if (options_.model.empty()) options_.model = first_model();
}

std::string HttpTeacher::first_model() {
  const std::string where = options_.address.text() + "/v1/models";
  const net::HttpAnswer answer = client_.ask(options_.address, {.path = "/v1/models"});
  const Json models = answer.ok() ? parse_json(answer.body, where) : Json();
  if (!models.is_object() || !models.contains("data") || !models["data"].is_array() || models["data"].empty() ||
      !models["data"][0].is_object() || !models["data"][0].value("id", Json()).is_string())
    throw ConfigError({.what = "the teacher does not say which models it has",
                       .where = where,
                       .got = fmt::format("status {}: {}", answer.status, excerpt(answer.body)),
                       .wanted = "an OpenAI server, or HttpTeacherOptions::model"});
  return models["data"][0]["id"].get<std::string>();
}

std::vector<std::vector<float>> HttpTeacher::logprobs(std::span<const train::Datum> datums,
                                                      const train::Progress& between) {
  return Questions(options_, client_, datums).run(between);
}

}  // namespace lockstep::rl
