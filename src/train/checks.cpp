#include "train/checks.h"

#include <cmath>
#include <string>

#include "core/error.h"
#include "train/trainer.h"

namespace lockstep::train {

namespace {

void require_option(bool good, const char* option, double got, const char* wanted) {
  if (good) return;
  throw ConfigError(
      {.what = "impossible training option", .where = option, .got = std::to_string(got), .wanted = wanted});
}

[[noreturn]] void bad_datum(int64_t sample, const std::string& what, const std::string& got,
                            const std::string& wanted) {
  throw DataError({.what = what, .where = "sample " + std::to_string(sample), .got = got, .wanted = wanted});
}

}  // namespace

void require_options(const TrainerOptions& o) {
  require_option(o.beta1 >= 0 && o.beta1 < 1, "TrainerOptions::beta1", o.beta1, "at least 0 and below 1");
  require_option(o.beta2 >= 0 && o.beta2 < 1, "TrainerOptions::beta2", o.beta2, "at least 0 and below 1");
  require_option(o.eps > 0 && std::isfinite(o.eps), "TrainerOptions::eps", o.eps, "a positive number");
  require_option(o.weight_decay >= 0 && std::isfinite(o.weight_decay), "TrainerOptions::weight_decay", o.weight_decay,
                 "at least 0");
  require_option(o.clip_grad >= 0 && std::isfinite(o.clip_grad), "TrainerOptions::clip_grad", o.clip_grad,
                 "at least 0 (0: off)");
  require_option(o.max_tokens >= 1, "TrainerOptions::max_tokens", static_cast<double>(o.max_tokens), "at least 1");
  require_option(o.temperature > 0 && std::isfinite(o.temperature), "TrainerOptions::temperature", o.temperature,
                 "a positive number");
  require_option(o.dropout >= 0 && o.dropout < 1, "TrainerOptions::dropout", o.dropout, "at least 0 and below 1");
  require_option(o.lr_ratio > 0 && std::isfinite(o.lr_ratio), "TrainerOptions::lr_ratio", o.lr_ratio,
                 "a positive number");
}

void require_readable(const Datum& datum, int64_t sample, const model::ModelSpec& config) {
  const int64_t rows = datum.size(), vocab = config.vocab_size;
  if (rows < 1 || rows > config.max_positions)
    bad_datum(sample, "a training sequence has an impossible length", std::to_string(rows) + " rows",
              "1 to " + std::to_string(config.max_positions) + ", the positions of the model");
  if (static_cast<int64_t>(datum.targets.size()) != rows)
    bad_datum(sample, "a datum has the wrong number of entries", std::to_string(datum.targets.size()) + " targets",
              std::to_string(rows) + ", one per token");
  for (int64_t t = 0; t < rows; ++t)
    if (datum.tokens[t] < 0 || datum.tokens[t] >= vocab || datum.targets[t] < -1 || datum.targets[t] >= vocab)
      bad_datum(sample, "a token is outside the vocabulary",
                "row " + std::to_string(t) + ": token " + std::to_string(datum.tokens[t]) + ", target " +
                    std::to_string(datum.targets[t]),
                "0 to " + std::to_string(vocab - 1) + " (a target may be -1: none)");
}

void require_weights(const Datum& datum, int64_t sample) {
  if (datum.weights.size() != datum.tokens.size())
    bad_datum(sample, "a datum has the wrong number of entries", std::to_string(datum.weights.size()) + " weights",
              std::to_string(datum.size()) + ", one per token");
}

}  // namespace lockstep::train
