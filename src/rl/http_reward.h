// Rewards that services give over HTTP.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "net/http_client.h"
#include "rl/reward.h"

namespace lockstep::rl {

struct HttpRewardOptions {
  net::Address address;
  std::string path = "/";                      // behind the address's prefix
  std::string api_key = {};                    // Authorization: Bearer
  std::chrono::milliseconds timeout{120'000};  // of a request from its first attempt to the last
  size_t max_in_flight = 64;                   // requests, and connections that are kept
};

// Asks for each sample. No answer, and the statuses 408, 429 and 5xx, are tried again after 0.1, 0.2, 0.4 ... 5 seconds
// until the time is up; any other status leaves the sample unknown at once. While nobody calls, as during training,
// each answer makes room for the next question. A question that has failed meanwhile is asked again at the next call,
// and what it waited for that does not count as its time.
class HttpReward : public Reward {
 public:
  explicit HttpReward(HttpRewardOptions options);
  ~HttpReward() override;

  Ticket submit(std::vector<RewardSample> samples) override;
  std::vector<Graded> poll(Deadline deadline) override;
  void cancel(Ticket ticket) override;

 protected:
  // The bodies of a sample's requests; none: `failure` says why there is nothing to ask.
  virtual std::vector<std::string> requests(const RewardSample& sample, std::string& failure) const = 0;
  // The score that their answers, bodies in the same order, are together.
  virtual Score read(const RewardSample& sample, const std::vector<std::string>& answers) const = 0;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {  // one request
    uint64_t question = 0;
    size_t part = 0;
    std::string body;
    Clock::time_point first_sent, due;
    int attempts = 0;
  };
  struct Question {  // one sample
    RewardSample sample;
    Ticket ticket = 0;
    size_t position = 0, missing = 0;
    std::vector<std::string> answers;
  };
  struct Open {
    std::vector<Score> scores;
    size_t missing = 0;
  };
  struct Sent {
    Job job;
    net::HttpClient::Id id = 0;
  };
  struct Arrived {
    Job job;
    net::HttpClient::Outcome outcome;
    Clock::time_point at;
  };

  void pump();                                                   // takes what came, sends what is due
  void arrive(uint64_t sent, net::HttpClient::Outcome outcome);  // on the client's thread
  void take(Arrived arrived);
  void send_due();
  void send(Job job);
  void try_again(Job job, const std::string& failure, Clock::time_point failed_at);
  void answer(const Job& job, std::string body);
  void finish(uint64_t question, Score score);
  Clock::time_point next_due() const;

  const HttpRewardOptions options_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<Ticket, Open> open_;
  std::map<uint64_t, Question> questions_;
  std::deque<Job> waiting_;
  std::map<uint64_t, Sent> sent_;  // without an answer
  std::vector<Arrived> arrived_;
  std::vector<Graded> graded_;
  Ticket next_ticket_ = 0;
  uint64_t next_question_ = 0, next_sent_ = 0;
  net::HttpClient client_;  // ends first: its thread uses the others
};

}  // namespace lockstep::rl
