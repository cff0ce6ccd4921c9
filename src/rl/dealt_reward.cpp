#include "rl/dealt_reward.h"

#include <algorithm>
#include <utility>

#include "parallel/agree.h"
#include "parallel/bytes.h"
#include "parallel/gather.h"

namespace lockstep::rl {

namespace {

// How long a rank waits for its own rewards before the ranks meet.
constexpr std::chrono::milliseconds kTurn{200};

void write_value(parallel::ByteWriter& writer, const std::optional<float>& value) {
  writer.add(value.has_value());
  writer.add(value.value_or(0));
}

std::optional<float> read_value(parallel::ByteReader& reader) {
  const bool known = reader.take<bool>();
  const auto value = reader.take<float>();
  return known ? std::optional(value) : std::nullopt;
}

void write_scores(parallel::ByteWriter& writer, const std::vector<Score>& scores) {
  writer.add<uint64_t>(scores.size());
  for (const Score& score : scores) {
    write_value(writer, score.value);
    writer.add_text(score.failure);
    writer.add<uint64_t>(score.parts.size());
    for (const ScorePart& part : score.parts) {
      writer.add_text(part.name);
      write_value(writer, part.value);
    }
  }
}

std::vector<Score> read_scores(parallel::ByteReader& reader) {
  std::vector<Score> scores;
  for (auto count = reader.take<uint64_t>(); count > 0; --count) {
    Score& score = scores.emplace_back();
    score.value = read_value(reader);
    score.failure = reader.take_text();
    for (auto parts = reader.take<uint64_t>(); parts > 0; --parts) {
      std::string name = reader.take_text();
      score.parts.push_back({.name = std::move(name), .value = read_value(reader)});
    }
  }
  return scores;
}

}  // namespace

Reward::Ticket DealtReward::submit(std::vector<RewardSample> samples) {
  const Ticket ticket = next_++;
  open_.insert(ticket);
  if (ticket % group_.size() != group_.rank() || failed_) return ticket;
  try {
    own_tickets_.emplace(own_.submit(std::move(samples)), ticket);
  } catch (...) {
    failed_ = std::current_exception();
  }
  return ticket;
}

// An empty answer before the deadline would say that nothing is in flight: all ranks know what is, and go on together.
std::vector<Reward::Graded> DealtReward::poll(Deadline deadline) {
  std::vector<Graded> all;
  const bool waits = deadline != Deadline{};
  while (!open_.empty() && all.empty()) {
    all = meet(waits ? std::max(deadline, std::chrono::steady_clock::now() + kTurn / 4) : deadline);
    if (!waits) break;
  }
  return all;
}

std::vector<Reward::Graded> DealtReward::meet(Deadline deadline) {
  std::vector<Graded> all, mine;
  parallel::agree_after(group_, [&] {
    if (failed_) std::rethrow_exception(std::exchange(failed_, nullptr));
    if (!own_tickets_.empty()) mine = own_.poll(std::min(deadline, std::chrono::steady_clock::now() + kTurn));
  });
  parallel::ByteWriter writer;
  writer.add(interrupted_());
  for (const Graded& graded : mine) {
    const auto found = own_tickets_.find(graded.ticket);
    if (found == own_tickets_.end()) continue;
    writer.add(found->second);
    write_scores(writer, graded.scores);
    own_tickets_.erase(found);
  }
  bool interrupted = false;
  for (const std::vector<std::byte>& bytes : parallel::gather_varied(group_, writer.take())) {
    parallel::ByteReader reader(bytes);
    interrupted = reader.take<bool>() || interrupted;
    while (!reader.empty()) {
      const auto ticket = reader.take<Ticket>();
      all.push_back({.ticket = ticket, .scores = read_scores(reader)});
      open_.erase(ticket);
    }
  }
  if (interrupted) throw Cancelled({.what = "interrupted while ranks waited for rewards"});
  return all;
}

void DealtReward::cancel(Ticket ticket) {
  open_.erase(ticket);
  const auto found = std::ranges::find(own_tickets_, ticket, [](const auto& entry) { return entry.second; });
  if (found == own_tickets_.end()) return;
  own_.cancel(found->first);
  own_tickets_.erase(found);
}

}  // namespace lockstep::rl
