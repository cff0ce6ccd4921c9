#include "rl/http_reward.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rl/http_retry.h"
#include "rl/score_json.h"

namespace lockstep::rl {

namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& what) {
    return what.what();
  }
}

}  // namespace

HttpReward::HttpReward(HttpRewardOptions options) : options_(std::move(options)), client_(options_.max_in_flight) {}

HttpReward::~HttpReward() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();  // nothing is sent any more
}

Reward::Ticket HttpReward::submit(std::vector<RewardSample> samples) {
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_ticket_++;
  open_[ticket] = {.scores = std::vector<Score>(samples.size()), .missing = samples.size()};
  for (size_t i = 0; i < samples.size(); ++i) {
    std::string failure;
    std::vector<std::string> bodies = requests(samples[i], failure);
    const uint64_t id = next_question_++;
    Question& question = questions_[id];
    question = {.sample = std::move(samples[i]),
                .ticket = ticket,
                .position = i,
                .missing = bodies.size(),
                .answers = std::vector<std::string>(bodies.size())};
    if (bodies.empty()) {
      finish(id, Score::unknown(failure));
      continue;
    }
    for (size_t part = 0; part < bodies.size(); ++part)
      waiting_.push_back({.question = id, .part = part, .body = std::move(bodies[part])});
  }
  pump();
  return ticket;
}

std::vector<Reward::Graded> HttpReward::poll(Deadline deadline) {
  std::unique_lock lock(mutex_);
  for (;;) {
    pump();
    if (!graded_.empty() || open_.empty() || Clock::now() >= deadline) return std::exchange(graded_, {});
    changed_.wait_until(lock, std::min(deadline, next_due()), [&] { return !arrived_.empty(); });
  }
}

void HttpReward::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  open_.erase(ticket);
  std::erase_if(graded_, [ticket](const Graded& graded) { return graded.ticket == ticket; });
  std::erase_if(questions_, [ticket](const auto& entry) { return entry.second.ticket == ticket; });
  std::erase_if(waiting_, [&](const Job& job) { return !questions_.contains(job.question); });
  std::erase_if(sent_, [&](const auto& entry) {
    const bool mine = !questions_.contains(entry.second.job.question);
    if (mine) client_.cancel(entry.second.id);
    return mine;
  });
}

void HttpReward::pump() {
  for (Arrived& one : std::exchange(arrived_, {})) take(std::move(one));
  send_due();
}

void HttpReward::send_due() {
  const Clock::time_point now = Clock::now();
  for (size_t left = waiting_.size(); left > 0 && sent_.size() < options_.max_in_flight; --left) {
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    if (!questions_.contains(job.question)) continue;
    if (job.due > now)
      waiting_.push_back(std::move(job));
    else
      send(std::move(job));
  }
}

void HttpReward::send(Job job) {
  const Clock::time_point now = Clock::now();
  if (job.attempts++ == 0)
    job.first_sent = now;
  else
    job.first_sent += now - job.due;  // nobody called since then
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(job.first_sent + options_.timeout - now);
  net::HttpRequest request{
      .method = "POST", .path = options_.path, .body = job.body, .connect_timeout = left, .timeout = left};
  if (!options_.api_key.empty()) request.headers.emplace_back("Authorization", "Bearer " + options_.api_key);
  const uint64_t number = next_sent_++;
  const net::HttpClient::Id id =
      client_.send(options_.address, std::move(request),
                   [this, number](net::HttpClient::Outcome outcome) { arrive(number, std::move(outcome)); });
  sent_[number] = {.job = std::move(job), .id = id};
}

void HttpReward::arrive(uint64_t sent, net::HttpClient::Outcome outcome) {
  const std::lock_guard lock(mutex_);
  const auto found = sent_.find(sent);
  if (found == sent_.end()) return;
  arrived_.push_back({.job = std::move(found->second.job), .outcome = std::move(outcome), .at = Clock::now()});
  sent_.erase(found);
  send_due();
  changed_.notify_all();
}

void HttpReward::take(Arrived arrived) {
  Job job = std::move(arrived.job);
  if (!questions_.contains(job.question)) return;
  const auto* got = std::get_if<net::HttpAnswer>(&arrived.outcome);
  if (got == nullptr)
    return try_again(std::move(job), text_of(std::get<std::exception_ptr>(arrived.outcome)), arrived.at);
  if (got->ok()) return answer(job, got->body);
  const std::string failure =
      fmt::format("{} answered {}: {}", options_.address.text(options_.path), got->status, excerpt(got->body));
  if (may_pass(got->status)) return try_again(std::move(job), failure, arrived.at);
  finish(job.question, Score::unknown(failure));
}

void HttpReward::try_again(Job job, const std::string& failure, Clock::time_point failed_at) {
  job.due = failed_at + pause_after(job.attempts);
  if (job.due - job.first_sent < options_.timeout) return waiting_.push_back(std::move(job));
  finish(job.question, Score::unknown(fmt::format("no answer in {} ms and {} attempts: {}", options_.timeout.count(),
                                                  job.attempts, failure)));
}

void HttpReward::answer(const Job& job, std::string body) {
  Question& question = questions_.at(job.question);
  question.answers[job.part] = std::move(body);
  if (--question.missing == 0) finish(job.question, read(question.sample, question.answers));
}

void HttpReward::finish(uint64_t id, Score score) {
  const auto question = questions_.extract(id);
  const auto found = open_.find(question.mapped().ticket);
  if (found == open_.end()) return;
  found->second.scores[question.mapped().position] = std::move(score);
  if (--found->second.missing > 0) return;
  graded_.push_back({.ticket = found->first, .scores = std::move(found->second.scores)});
  open_.erase(found);
}

HttpReward::Clock::time_point HttpReward::next_due() const {
  Clock::time_point next = Clock::now() + std::chrono::hours(1);
  if (sent_.size() < options_.max_in_flight)
    for (const Job& job : waiting_) next = std::min(next, job.due);
  return next;
}

}  // namespace lockstep::rl
