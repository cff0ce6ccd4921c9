#include "commands/generate_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <ostream>
#include <utility>

#include "commands/output_file.h"
#include "core/device_facts.h"
#include "core/hash.h"
#include "data/dataset.h"
#include "recipes/bad_rows.h"
#include "recipes/chat.h"
#include "recipes/run_log.h"
#include "recipes/sampling_fields.h"

namespace lockstep::commands {

namespace {

using rollout::PromptLogprob, rollout::TopLogprob;

constexpr std::string_view kResultFields[] = {
    "row",           "index",           "completion",          "tokens",        "logprobs",       "top_logprobs",
    "prompt_tokens", "prompt_logprobs", "prompt_top_logprobs", "finish_reason", "adapter_version"};

// What the user gave.
std::string given_part(OrderedJson row) {
  for (const std::string_view field : kResultFields) row.erase(std::string(field));
  return row.dump();
}

OrderedJson logprobs_json(std::span<const TopLogprob> top) {
  OrderedJson json = OrderedJson::object();
  for (const TopLogprob& entry : top) json[std::to_string(entry.token)] = static_cast<double>(entry.logprob);
  return json;
}

struct SampleResult {
  recipes::ChoiceText text;
  std::string completion = {};
  std::vector<int32_t> tokens = {};
  OrderedJson logprobs = OrderedJson::array(), top = OrderedJson::array();
  std::optional<rollout::FinishReason> finish = {};
};

// A row from when its prompt is submitted until its lines are written.
struct PendingRow {
  data::Row row;
  std::vector<SampleResult> samples;
  std::vector<PromptLogprob> prompt = {};
  int64_t unfinished = 0;
};

class FileGenerator {
 public:
  FileGenerator(const GenerateOptions& options, Generation& generation, const recipes::Control& control)
      : options_(options),
        generation_(generation),
        control_(control),
        data_(data::Dataset::open(options.input, {.max_bad_rows = options.max_bad_rows})),
        renderer_(generation.base.path.string(), options.chat),
        engine_(generation.base.model,
                {.kv_bytes = options.kv_bytes,
                 .max_sequences = options.max_sequences,
                 .tokenizer = &generation.tokenizer,
                 .prefix_cache = true},
                generation.stream),
        log_("", 0, control) {
    generation_.adapter.hold_in(engine_);
    generation_.sampling.top_logprobs = options.top_logprobs;
    if (std::ranges::count(kResultFields, options.input_key) > 0)
      throw ConfigError({.what = "the results would take the place of the prompt",
                         .where = "--input-key",
                         .got = options.input_key,
                         .attempt = "another name for this field of " + data_.path()});
    if (options.output.empty()) return;
    require_not_input(options.output, data_.path());
    output_.emplace(options.output, settings(), options.overwrite);
    if (const std::string reason = output_->unlocked(); !reason.empty())
      *control.info << fmt::format("note    {} cannot be locked ({}): see that no other run writes it\n",
                                   options.output, reason);
  }

  void run() {
    total_ = data_.size();
    while (fill(), !pending_.empty()) {
      stop_if_interrupted();
      for (const rollout::Event& event : engine_.wait(rollout::kAtOnce)) take(event);
      write_finished();
      show_progress();
    }
    if (output_) output_->go_on();
    log_.progress("");
    recipes::report_bad_rows(data_.bad_rows(), options_.max_bad_rows, *control_.info);
    *control_.info << summary();
  }

 private:
  OrderedJson settings() const;
  void fill();
  std::optional<data::Row> next_row(rollout::SampleRequest& request);
  bool was_written(const data::Row& row);
  void require_line_of(const data::Row& row, int64_t index, const std::string& line) const;
  void require_end_of_output();
  void take(const rollout::Event& event);
  void write_finished();
  std::string lines_of(const PendingRow& pending) const;
  void show_progress();
  void stop_if_interrupted();
  std::string summary() const;

  const GenerateOptions& options_;
  Generation& generation_;
  const recipes::Control& control_;
  data::Dataset data_;
  const recipes::PromptRenderer renderer_;
  rollout::Engine engine_;
  std::optional<OutputFile> output_;
  recipes::RunLog log_;

  bool more_rows_ = true;
  std::deque<PendingRow> pending_;  // in the order of the input; lines of the first ones are written first
  std::map<rollout::Ticket, PendingRow*> in_flight_;
  int64_t total_ = 0, found_ = 0, finished_ = 0, new_tokens_ = 0;  // rows of the input, found written, made; tokens
  std::optional<recipes::Pace> pace_;
  Stopwatch watch_;
  double last_line_ms_ = 0;
};

// What a line depends on besides its row. A GPU's bits are not a CPU's.
OrderedJson FileGenerator::settings() const {
  const load::Base& base = generation_.base;
  const auto digest = [](std::string_view text) {
    Sha256 hash;
    hash.update(text);
    return hash.hex();
  };
  const auto chat_template = recipes::load_chat_template(base.path.string(), options_.chat);
  OrderedJson json = {{"command", "generate"}, {"base", base.fingerprint}};
  json["tokenizer"] = digest(fs::read_file(base.path / "tokenizer.json"));
  json["adapter"] = generation_.adapter.version ? OrderedJson(generation_.adapter.digest) : nullptr;
  json["adapter_version"] =
      generation_.adapter.version ? OrderedJson(generation_.adapter.version->policy.version) : nullptr;
  json["input_key"] = options_.input_key;
  json["apply_chat_template"] = options_.chat.apply;
  json["chat_template"] =
      chat_template ? OrderedJson(digest(chat_template->source(false) + '\0' + chat_template->source(true))) : nullptr;
  json["chat_template_kwargs"] = options_.chat.kwargs;
  json["tool_key"] = options_.chat.tool_key;
  json["n"] = options_.n;
  json.update(recipes::sampling_json(generation_.sampling));
  json["top_logprobs"] = options_.top_logprobs;
  json["prompt_logprobs"] = options_.prompt_logprobs ? OrderedJson(*options_.prompt_logprobs) : nullptr;
  json["device"] = device_name(generation_.stream.device());
  return json;
}

// Twice what decodes at once is submitted, so that the engine never waits for this; finished rows are held back behind
// a slow one up to a multiple of that.
void FileGenerator::fill() {
  constexpr int64_t kHeldBack = 16;
  const int64_t window = std::max<int64_t>(1, 2 * options_.max_sequences / options_.n);
  while (more_rows_ && static_cast<int64_t>(in_flight_.size()) < window &&
         static_cast<int64_t>(pending_.size()) < kHeldBack * window) {
    rollout::SampleRequest request;
    std::optional<data::Row> row = next_row(request);
    if (!row) {
      more_rows_ = false;
      require_end_of_output();
      return;
    }
    PendingRow& pending =
        pending_.emplace_back(PendingRow{.row = *std::move(row), .samples = {}, .unfinished = options_.n});
    for (int64_t i = 0; i < options_.n; ++i)
      pending.samples.push_back(
          {.text = recipes::ChoiceText(generation_.tokenizer, {.stop = generation_.sampling.stop})});
    in_flight_[engine_.submit(std::move(request))] = &pending;
  }
}

// The next good row that the output does not have yet, and what to ask for it.
std::optional<data::Row> FileGenerator::next_row(rollout::SampleRequest& request) {
  while (std::optional<data::Row> row = data_.next()) {
    const std::string where = data_.where(*row);
    // Rows that were written before are looked at as well: which rows are bad must not depend on an interruption.
    const bool good = data_.accept(*row, [&] {
      request = {.tokens = generation_.tokenizer.encode(renderer_.render(row->json, options_.input_key, where)),
                 .sampling = generation_.sampling,
                 .n = options_.n,
                 .rollout = static_cast<uint32_t>(row->number >> 32),
                 .row = static_cast<uint32_t>(row->number),
                 .policy = generation_.adapter.policy(),
                 .prompt_logprobs = options_.prompt_logprobs};
      const auto at_row = [&](Fault fault) {
        fault.where = where;
        return fault;
      };
      try {
        engine_.check(request);
      } catch (const DataError& error) {
        throw DataError(at_row(error.fault()));
      } catch (const ResourceError& error) {
        throw ResourceError(at_row(error.fault()));
      }
    });
    if (!good) continue;
    if (!output_ || !was_written(*row)) return row;
    ++found_;
    stop_if_interrupted();
  }
  return std::nullopt;
}

bool FileGenerator::was_written(const data::Row& row) {
  if (output_->going_on()) return false;
  for (int64_t index = 0; index < options_.n; ++index) {
    const std::optional<std::string> line = output_->earlier_line();
    if (!line) {
      output_->go_on();
      return false;
    }
    require_line_of(row, index, *line);
  }
  output_->keep();
  return true;
}

void FileGenerator::require_line_of(const data::Row& row, int64_t index, const std::string& line) const {
  const OrderedJson json = OrderedJson::parse(line, nullptr, false);
  const bool same = json.is_object() && json.value("row", OrderedJson()) == row.number &&
                    json.value("index", OrderedJson()) == index && given_part(json) == given_part(row.json);
  if (same) return;
  constexpr size_t kShown = 200;
  throw ConfigError(
      {.what = "the output file holds another row than the input",
       .where = fmt::format("{} line {}", options_.output, output_->line_number()),
       .got = line.substr(0, kShown),
       .wanted = fmt::format("sample {} of row {}: {}", index, row.number, row.json.dump().substr(0, kShown)),
       .attempt = "another --output, or --overwrite to begin this one anew"});
}

void FileGenerator::require_end_of_output() {
  if (!output_ || output_->going_on() || !output_->earlier_line()) return;
  throw ConfigError({.what = "the output file holds more rows than the input",
                     .where = fmt::format("{} line {}", options_.output, output_->line_number()),
                     .attempt = "another --output, or --overwrite to begin this one anew"});
}

void FileGenerator::take(const rollout::Event& event) {
  if (const auto* prompt = std::get_if<rollout::PromptDone>(&event.what))
    in_flight_.at(event.ticket)->prompt = prompt->logprobs;
  const rollout::Token* const out = rollout::token_of(event);
  if (!out) return;
  PendingRow& pending = *in_flight_.at(event.ticket);
  require_finite(*out, fmt::format("{}, sample {}", data_.where(pending.row), out->index));
  SampleResult& sample = pending.samples[static_cast<size_t>(out->index)];
  sample.completion += next_text(sample.text, *out);
  sample.tokens.push_back(out->token);
  sample.logprobs.push_back(static_cast<double>(out->logprob));
  if (options_.top_logprobs > 0) sample.top.push_back(logprobs_json(out->top));
  ++new_tokens_;
  if (!out->finish) return;
  sample.finish = out->finish;
  if (--pending.unfinished > 0) return;
  in_flight_.erase(event.ticket);
  ++finished_;
}

std::string FileGenerator::lines_of(const PendingRow& pending) const {
  std::string lines;
  for (size_t i = 0; i < pending.samples.size(); ++i) {
    const SampleResult& sample = pending.samples[i];
    OrderedJson line = pending.row.json;
    line["row"] = pending.row.number;
    line["index"] = i;
    line["completion"] = sample.completion;
    line["tokens"] = sample.tokens;
    line["logprobs"] = sample.logprobs;
    if (options_.top_logprobs > 0) line["top_logprobs"] = sample.top;
    if (options_.prompt_logprobs) {
      OrderedJson tokens = OrderedJson::array(), logprobs = OrderedJson::array(), top = OrderedJson::array();
      for (const PromptLogprob& token : pending.prompt) {
        const bool first = tokens.empty();
        tokens.push_back(token.token);
        logprobs.push_back(first ? OrderedJson() : OrderedJson(static_cast<double>(token.logprob)));
        top.push_back(first ? OrderedJson() : logprobs_json(token.top));
      }
      line["prompt_tokens"] = std::move(tokens);
      line["prompt_logprobs"] = std::move(logprobs);
      if (*options_.prompt_logprobs > 0) line["prompt_top_logprobs"] = std::move(top);
    }
    line["finish_reason"] = rollout::finish_reason_name(*sample.finish);
    line["adapter_version"] =
        generation_.adapter.version ? OrderedJson(generation_.adapter.version->policy.version) : OrderedJson();
    lines += json_text(line) + "\n";
  }
  return lines;
}

void FileGenerator::write_finished() {
  std::string lines;
  for (; !pending_.empty() && pending_.front().unfinished == 0; pending_.pop_front())
    lines += lines_of(pending_.front());
  if (lines.empty()) return;
  if (output_)
    output_->write(lines);
  else
    *control_.out << control_.shown(lines) << std::flush;
}

// On a terminal a line that is redrawn; elsewhere one every few seconds, for logs.
void FileGenerator::show_progress() {
  constexpr double kLineMs = 10'000;
  const int64_t done = found_ + finished_ + static_cast<int64_t>(data_.bad_rows().size());
  if (!pace_) {
    pace_.emplace(done, total_);
    watch_ = {};
  }
  const double ms = watch_.ms();
  if (!control_.terminal && ms - last_line_ms_ < kLineMs) return;
  const std::string text = fmt::format("{}  {}/{} rows, {:.0f} tok/s{}{}", recipes::progress_bar(done, total_), done,
                                       total_, ms > 0 ? 1000 * static_cast<double>(new_tokens_) / ms : 0.0,
                                       pace_->left(done).empty() ? "" : ", ", pace_->left(done));
  if (control_.terminal) return log_.progress(text);
  last_line_ms_ = ms;
  log_.say(text);
}

void FileGenerator::stop_if_interrupted() {
  if (!control_.interrupted()) return;
  log_.progress("");
  Fault fault{.what = "interrupted"};
  if (output_) {
    const int64_t written = found_ + finished_ - std::ranges::count(pending_, 0, &PendingRow::unfinished);
    fault.where = options_.output;
    fault.got = fmt::format("{} of {} rows", written, total_);
    fault.attempt = "the same command goes on from there";
  }
  throw Cancelled(std::move(fault));
}

std::string FileGenerator::summary() const {
  const double seconds = watch_.ms() / 1000;
  const std::string rate =
      finished_ == 0 ? "" : fmt::format(", {:.0f} tok/s", static_cast<double>(new_tokens_) / seconds);
  const std::string found = found_ == 0 ? "" : fmt::format("; {} rows were there already", found_);
  return fmt::format("made    {} rows, {} tokens in {}{}{}\n", finished_, new_tokens_, recipes::duration_text(seconds),
                     rate, found);
}

}  // namespace

void generate_file(const GenerateOptions& options, Generation& generation, const recipes::Control& control) {
  FileGenerator(options, generation, control).run();
}

}  // namespace lockstep::commands
