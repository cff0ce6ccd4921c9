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
#include "rl/teacher_dialect.h"

namespace lockstep::rl {

namespace {

using Clock = std::chrono::steady_clock;

struct Job {
  size_t datum = 0;
  int attempts = 0;
  Clock::time_point first_sent = {}, due = {};
};

// The sequences of one call on their way.
class Questions {
 public:
  Questions(const HttpTeacherOptions& options, net::HttpClient& client, const TeacherQuestion& question)
      : options_(options),
        client_(client),
        question_(question),
        dialect_(dialect_of(options.address.prefix)),
        path_(dialect_ == TeacherDialect::generate ? "" : "/v1/completions"),
        answers_(question.datums.size()) {
    for (size_t i = 0; i < question.datums.size(); ++i) waiting_.push_back({.datum = i});
  }
  ~Questions() {
    for (const auto& [number, sent] : sent_) client_.cancel(sent.second);
  }
  Questions(const Questions&) = delete;
  Questions& operator=(const Questions&) = delete;

  std::vector<train::RowOutputs> run(const train::Progress& between) {
    while (done_ < answers_.size()) {
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
                             .path = path_,
                             .body = request_of(dialect_, options_.model, of(job.datum)),
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
    const std::string where = options_.address.text(path_);
    const auto* answer = std::get_if<net::HttpAnswer>(&outcome);
    if (answer != nullptr && answer->ok()) {
      answers_[job.datum] = read_answer(dialect_, answer->body, of(job.datum), where);
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

  SequenceQuestion of(size_t datum) const {
    return {.datum = question_.datums[datum],
            .top = question_.top,
            .candidates = question_.candidates.empty() ? std::span<const int32_t>() : question_.candidates[datum],
            .per_position = options_.per_position};
  }

  struct Inbox {
    std::mutex mutex;
    std::condition_variable came;
    std::vector<Arrival> arrivals;
  };

  const HttpTeacherOptions& options_;
  net::HttpClient& client_;
  const TeacherQuestion& question_;
  const TeacherDialect dialect_;
  const std::string path_;
  std::vector<train::RowOutputs> answers_;
  std::deque<Job> waiting_;
  std::map<uint64_t, std::pair<Job, net::HttpClient::Id>> sent_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  uint64_t next_ = 0;
  size_t done_ = 0;
};

}  // namespace

HttpTeacher::HttpTeacher(HttpTeacherOptions options, float temperature)
    : options_(std::move(options)), client_(static_cast<size_t>(options_.max_in_flight)) {
  if (temperature != 1)
    throw ConfigError(
        {.what = "servers report log-probs at temperature 1, and the teacher's are compared with the actor's",
         .where = "sampling.temperature",
         .got = fmt::format("{:g}", temperature),
         .wanted = "1, or a teacher in this process"});
  if (options_.model.empty() && dialect_of(options_.address.prefix) == TeacherDialect::completions)
    options_.model = first_model();
}

std::string HttpTeacher::first_model() {
  const std::string where = options_.address.text("/v1/models");
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

std::vector<train::RowOutputs> HttpTeacher::answer(const TeacherQuestion& question, const train::Progress& between) {
  if (!question.candidates.empty() && dialect_of(options_.address.prefix) != TeacherDialect::generate)
    throw ConfigError({.what = "the teacher's server says the log-probs of its own likeliest tokens only",
                       .where = options_.address.text(),
                       .wanted = "tokens that are the teacher's own, or SGLang's /generate"});
  return Questions(options_, client_, question).run(between);
}

std::vector<train::RowOutputs> NamedTeachers::answer(const TeacherQuestion& question, const train::Progress& between) {
  std::map<std::string, std::vector<size_t>> datums_of;
  for (size_t i = 0; i < question.datums.size(); ++i) {
    std::string name = i < question.teachers.size() ? question.teachers[i] : std::string();
    if (!teachers_.contains(name)) name = teachers_.contains("default") ? "default" : name;
    if (!teachers_.contains(name))
      throw DataError({.what = "a row asks for a teacher that the run does not have",
                       .where = "sample " + std::to_string(i),
                       .got = "\"" + name + "\"",
                       .attempt = "name it, or one as \"default\""});
    datums_of[name].push_back(i);
  }
  std::vector<train::RowOutputs> all(question.datums.size());
  int64_t done = 0;
  for (const auto& [name, own] : datums_of) {
    std::vector<train::Datum> datums;
    std::vector<std::vector<int32_t>> candidates;
    for (const size_t i : own) {
      datums.push_back(question.datums[i]);
      if (!question.candidates.empty()) candidates.push_back(question.candidates[i]);
    }
    std::vector<train::RowOutputs> answers = teachers_.at(name)->answer(
        {.datums = datums, .top = question.top, .candidates = candidates}, [&](int64_t of_this) {
          if (between) between(done + of_this);
        });
    for (size_t i = 0; i < own.size(); ++i) all[own[i]] = std::move(answers[i]);
    done += static_cast<int64_t>(own.size());
  }
  return all;
}

void NamedTeachers::release_memory() {
  for (const auto& [name, teacher] : teachers_) teacher->release_memory();
}

}  // namespace lockstep::rl
