// lockstep reward: verdicts on responses that are there already.
#include <fmt/format.h>

#include <deque>
#include <ostream>
#include <utility>

#include "commands/commands.h"
#include "commands/output_file.h"
#include "data/dataset.h"
#include "recipes/bad_rows.h"
#include "recipes/prompts.h"
#include "recipes/run_log.h"

namespace lockstep::commands {

namespace {

constexpr const char *kField = "reward", *kParts = "reward_parts";

void check_options(const RewardOptions& options, const data::Dataset& data) {
  if (options.response_key == kField || options.label_key == kField)
    throw ConfigError({.what = "the rewards would take the place of what they are made from",
                       .where = options.label_key == kField ? "--label-key" : "--response-key",
                       .got = kField,
                       .attempt = "another name for this field of " + data.path()});
  require_not_input(options.output, data.path());
}

// Rows that were graded, and what came out.
struct Tally {
  int64_t rows = 0, unknown = 0;
  double sum = 0;
  std::string failure;  // of the first unknown one

  void add(const rl::Score& score) {
    ++rows;
    if (score.value)
      sum += static_cast<double>(*score.value);
    else if (++unknown == 1)
      failure = score.failure;
  }
  std::string mean() const {
    const int64_t known = rows - unknown;
    return known == 0 ? "reward undefined: no row has a known one"
                      : fmt::format("reward {:.4f}, mean of {} rows", sum / static_cast<double>(known), known);
  }
};

std::string prompt_of(const data::Row& row, const std::string& key) {
  const auto found = row.json.find(key);
  if (found == row.json.end()) return {};
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// A number of tokens, or a list of them.
int64_t length_of(const data::Dataset& data, const data::Row& row, const std::string& key) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  if (key.empty()) return 0;
  const auto found = row.json.find(key);
  if (found != row.json.end() && found->is_array()) return std::ssize(*found);
  if (found != row.json.end() && found->is_number_integer() && *found >= 0 && *found <= kMostTokens)
    return found->get<int64_t>();
  throw DataError({.what = "the row does not say how long its response is",
                   .where = data.where(row) + ": " + key,
                   .got = found == row.json.end() ? "no such key" : found->dump(),
                   .wanted = "a number of tokens, at most 16777216, or a list of them"});
}

rl::RewardSample sample_of(const RewardOptions& options, const data::Dataset& data, const data::Row& row) {
  const bool labelled = row.json.contains(options.label_key) || recipes::needs_labels(options.reward);
  rl::RewardRow given{.prompt = prompt_of(row, options.prompt_key),
                      .label = labelled ? data::label_field(data, row, options.label_key) : ""};
  const auto tokens = static_cast<size_t>(length_of(data, row, options.length_key));
  return {.row = recipes::reward_row(options.reward, data, row, options.metadata_key, std::move(given)),
          .response = data::string_field(data, row, options.response_key),
          .group = row.number,
          .tokens = std::vector<int32_t>(tokens)};
}

// Rows on their way through a reward; they leave in their order. Neighbours with the same prompt are a group, if the
// reward judges groups.
class Grading {
 public:
  Grading(const RewardOptions& options, rl::Reward& reward, Tally& tally)
      : options_(options), reward_(reward), tally_(tally) {}
  ~Grading() {
    for (const Batch& batch : batches_)
      if (batch.scores.empty()) reward_.cancel(batch.ticket);
  }
  Grading(const Grading&) = delete;
  Grading& operator=(const Grading&) = delete;

  void add(OrderedJson row, rl::RewardSample sample) {
    const bool joins = reward_.grades_groups() && !samples_.empty() &&
                       samples_.front().row->prompt == sample.row->prompt && options_.reward.groups;
    if (!joins) submit();
    sample.index = std::ssize(samples_);
    rows_.push_back(std::move(row));
    samples_.push_back(std::move(sample));
  }
  // Waits until at most `most` batches are on their way. Returns the lines that are done.
  std::string drain(size_t most, const recipes::Control& control) {
    if (most == 0) submit();
    std::string lines;
    for (;;) {
      while (!batches_.empty() && !batches_.front().scores.empty()) {
        write(lines, batches_.front());
        batches_.pop_front();
      }
      if (batches_.size() <= most) return lines;
      if (control.interrupted())
        throw Cancelled({.what = "interrupted", .where = options_.output, .got = "nothing more written"});
      constexpr std::chrono::milliseconds kBetweenQuestions{100};
      for (rl::Reward::Graded& graded : reward_.poll(std::chrono::steady_clock::now() + kBetweenQuestions))
        for (Batch& batch : batches_)
          if (batch.ticket == graded.ticket) batch.scores = std::move(graded.scores);
    }
  }

 private:
  struct Batch {
    rl::Reward::Ticket ticket = 0;
    std::vector<OrderedJson> rows;
    std::vector<rl::Score> scores;  // empty: none yet
  };

  void submit() {
    if (samples_.empty()) return;
    batches_.push_back({.rows = std::exchange(rows_, {})});
    batches_.back().ticket = reward_.submit(std::exchange(samples_, {}));
  }

  void write(std::string& lines, Batch& batch) {
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const rl::Score& score = batch.scores[i];
      OrderedJson& row = batch.rows[i];
      row[kField] = score.value ? OrderedJson(static_cast<double>(*score.value)) : OrderedJson(nullptr);
      if (!score.parts.empty()) row[kParts] = OrderedJson::object();
      for (const rl::ScorePart& part : score.parts)
        row[kParts][part.name] = part.value ? OrderedJson(static_cast<double>(*part.value)) : OrderedJson(nullptr);
      lines += json_text(row) + "\n";
      tally_.add(score);
    }
  }

  const RewardOptions& options_;
  rl::Reward& reward_;
  Tally& tally_;
  std::vector<OrderedJson> rows_;
  std::vector<rl::RewardSample> samples_;
  std::deque<Batch> batches_;
};

}  // namespace

void run_reward(const RewardOptions& options, const recipes::Control& control) {
  for (const std::string& note : options.notes) *control.info << "note    " << note << "\n";
  const std::unique_ptr<rl::Reward> reward =
      rl::make_reward(options.reward, {.input = options.prompt_key, .metadata = options.metadata_key});
  data::Dataset data = data::Dataset::open(options.input, {.max_bad_rows = options.max_bad_rows});
  check_options(options, data);
  recipes::RunLog log("", 0, control);
  const Stopwatch watch;
  Tally tally;
  Grading grading(options, *reward, tally);
  std::string lines;
  const auto take = [&](std::string done) {
    if (options.output.empty())
      *control.out << done;
    else
      lines += done;
  };
  while (std::optional<data::Row> row = data.next()) {
    if (control.interrupted())
      throw Cancelled({.what = "interrupted", .where = options.output, .got = "nothing written"});
    data.accept(*row, [&] {
      rl::RewardSample sample = sample_of(options, data, *row);
      grading.add(std::move(row->json), std::move(sample));
    });
    constexpr size_t kInFlight = 512;
    take(grading.drain(kInFlight, control));
    constexpr int64_t kEvery = 256;
    if (tally.rows % kEvery == 0) log.progress(fmt::format("graded {} rows", tally.rows));
  }
  take(grading.drain(0, control));
  log.progress("");
  if (!options.output.empty()) fs::write_file_atomic(options.output, lines);
  recipes::report_bad_rows(data.bad_rows(), options.max_bad_rows, *control.info);
  *control.info << fmt::format("graded  {} rows by {} in {}\n", tally.rows, options.reward.name(),
                               recipes::duration_text(watch.ms() / 1000));
  if (tally.unknown > 0)
    *control.info << fmt::format("note    {} of unknown reward (null); the first: {}\n", tally.unknown, tally.failure);
  (options.output.empty() ? *control.info : *control.out) << tally.mean() << "\n";
  if (tally.unknown > 0 && tally.unknown == tally.rows)
    throw DataError({.what = "no reward is known", .where = options.input, .got = tally.failure});
}

}  // namespace lockstep::commands
