// The port for rewards: a rule, a program, a model or a service that grades samples.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::rl {

// What a dataset row says to those who grade its samples.
struct RewardRow {
  std::string prompt;        // its text, as the model reads it
  std::string label;         // the right answer; numbers as the file writes them
  std::string json = {};     // the whole row, one JSON object; empty unless the reward reads rows
  std::string rm_type = {};  // the reward that the row asks for; empty: that of the run
  std::string teacher = {};  // the one that it asks for, where a run distills from several
};

struct RewardSample {
  std::shared_ptr<const RewardRow> row;  // never null
  std::string response = {};             // text
  uint32_t rollout = 0;                  // of the run
  int64_t group = 0, index = 0;          // sample `index` of prompt `group` of the rollout
  std::vector<int32_t> tokens = {};      // of the response, with the one that ended it
  bool truncated = false;                // the response ended because it was long
};

struct ScorePart {
  std::string name;
  std::optional<float> value;
};

// A verdict. No value: unknown (nobody could say), which is another thing than 0.
struct Score {
  std::optional<float> value = {};
  std::vector<ScorePart> parts = {};  // what the value was made of, if it has named parts
  std::string failure = {};           // why there is no value

  static Score known(float value) { return {.value = value}; }
  static Score unknown(std::string why) { return {.failure = std::move(why)}; }
  // Unknown where the number is not a finite float.
  static Score of(double number);
};

// What becomes of a sample whose reward is unknown.
enum class RewardFailure {
  drop_sample,  // nothing is learned from it, and its group's mean and spread are those of the others
  drop_group,   // its whole group is not trained on; the next prompt's takes its place (gate.h)
  stop          // DataError
};

class Reward {
 public:
  using Ticket = int64_t;  // of one submission; never used again
  struct Graded {
    Ticket ticket = 0;
    std::vector<Score> scores;  // one per sample, in their order
  };
  using Deadline = std::chrono::steady_clock::time_point;

  Reward() = default;
  virtual ~Reward() = default;
  Reward(const Reward&) = delete;
  Reward& operator=(const Reward&) = delete;

  // Whether one submission must hold all samples of a prompt, because they are judged together.
  virtual bool grades_groups() const { return false; }

  // Begins to grade, and may wait for nothing but its own computing. A reward that cannot be had is a Score without a
  // value, never an exception.
  virtual Ticket submit(std::vector<RewardSample> samples) = 0;

  // The submissions that were graded since the last call, each once; returns as soon as there is one. Empty: the
  // deadline has passed, or nothing is in flight.
  virtual std::vector<Graded> poll(Deadline deadline) = 0;

  // Forgets a submission; nothing if it was returned already.
  virtual void cancel(Ticket ticket) = 0;
};

}  // namespace lockstep::rl
