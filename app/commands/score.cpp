#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "commands/commands.h"
#include "commands/output_file.h"
#include "data/dataset.h"
#include "model/train_pass.h"
#include "recipes/adapter.h"
#include "recipes/run_log.h"
#include "rollout/sampler.h"
#include "train/micro_batch.h"

namespace lockstep::commands {

namespace {

struct ScoreRow {
  const data::Row* row = nullptr;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of tokens[1..]
};

std::vector<ScoreRow> read_rows(const data::Dataset& data, const std::vector<data::Row>& given,
                                const load::Base& base) {
  std::vector<ScoreRow> rows;
  std::optional<text::Tokenizer> tokenizer;
  for (const data::Row& row : given) {
    ScoreRow score{.row = &row};
    if (row.json.contains("tokens")) {
      score.tokens = data::token_field(data, row, "tokens", base.config.vocab_size);
    } else {
      if (!tokenizer) tokenizer = text::Tokenizer::load(base.path.string());
      score.tokens = tokenizer->encode(data::string_field(data, row, "text"));
    }
    recipes::require_in_vocabulary(score.tokens, base.config.vocab_size, data.where(row));
    if (score.tokens.empty()) throw DataError({.what = "nothing to score", .where = data.where(row)});
    if (static_cast<int64_t>(score.tokens.size()) > base.config.max_positions)
      throw DataError({.what = "row longer than the model's context",
                       .where = data.where(row),
                       .got = fmt::format("{} tokens", score.tokens.size()),
                       .wanted = fmt::format("at most {}", base.config.max_positions)});
    rows.push_back(std::move(score));
  }
  return rows;
}

// Scores consecutive rows as one packed batch.
void score_batch(std::span<ScoreRow> rows, model::TrainPass& pass, const lora::AdapterVersion* adapter) {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> begin = {0};
  for (const ScoreRow& row : rows) {
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    targets.insert(targets.end(), row.tokens.begin() + 1, row.tokens.end());
    targets.push_back(-1);
    begin.push_back(static_cast<int64_t>(tokens.size()));
  }
  const auto outputs = pass.score({.tokens = tokens, .sequence_begin = begin, .targets = targets}, adapter, {});
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* first = outputs.logprob_T.f32() + begin[i];
    rows[i].logprobs.assign(first, first + rows[i].tokens.size() - 1);
  }
}

// DataError as of generate and eval.
void require_finite(std::span<const ScoreRow> rows, const data::Dataset& data) {
  for (const ScoreRow& row : rows)
    for (size_t i = 0; i < row.logprobs.size(); ++i)
      if (!std::isfinite(row.logprobs[i]))
        throw DataError(rollout::not_finite({.token = -1}, fmt::format("{}: tokens[{}]", data.where(*row.row), i + 1)));
}

std::string output_text(const std::vector<ScoreRow>& rows) {
  std::string text;
  for (const ScoreRow& row : rows) {
    OrderedJson line = row.row->json;
    line["tokens"] = row.tokens;
    OrderedJson logprobs = OrderedJson::array({nullptr});
    for (float value : row.logprobs) logprobs.push_back(static_cast<double>(value));
    line["logprobs"] = std::move(logprobs);
    text += json_text(line) + "\n";
  }
  return text;
}

}  // namespace

void run_score(const ScoreOptions& options, const recipes::Control& control) {
  Stream stream(recipes::stream_options(options.base));
  const load::Base base = recipes::load_base(options.base, stream, control);
  std::optional<lora::AdapterVersion> adapter;
  if (!options.adapter_path.empty()) adapter = recipes::load_adapter(options.adapter_path, base, control);
  data::Dataset data = data::Dataset::open(options.input);
  require_not_input(options.output, data.path());
  const std::vector<data::Row> given = data.rest();
  std::vector<ScoreRow> rows = read_rows(data, given, base);

  recipes::RunLog log("", 0, control);
  model::TrainPass pass(*base.model, stream);
  const Stopwatch watch;
  int64_t tokens = 0;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const std::span<ScoreRow> left = std::span(rows).subspan(begin);
    end = begin +
          train::micro_batch_size(left, options.max_tokens, [](const ScoreRow& row) { return row.tokens.size(); });
    score_batch(left.first(end - begin), pass, adapter ? &*adapter : nullptr);
    require_finite(left.first(end - begin), data);
    if (control.interrupted())
      throw Cancelled({.what = "interrupted", .where = options.output, .got = "nothing written"});
    log.progress(fmt::format("scored {}/{} rows", end, rows.size()));
  }
  log.progress("");
  double sum = 0;
  for (const ScoreRow& row : rows)
    for (float value : row.logprobs) sum += value, ++tokens;
  fs::write_file_atomic(options.output, output_text(rows));
  *control.info << fmt::format("scored  {} rows, {} tokens in {}\n", rows.size(), tokens,
                               recipes::duration_text(watch.ms() / 1000));
  *control.out << (tokens > 0 ? fmt::format("perplexity {:.6g}\n", std::exp(-sum / static_cast<double>(tokens)))
                              : std::string("perplexity undefined: no row has two tokens\n"));
}

}  // namespace lockstep::commands
