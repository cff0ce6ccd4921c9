#include "recipes/held_out.h"

#include <fmt/format.h>

#include <ostream>

namespace lockstep::recipes {

bool BestSoFar::measure_on(const std::string& name, const std::string& rows, std::ostream& out) {
  // A checkpoint of a version that kept no digest is taken to be of this set.
  const bool other = !digest.empty() && digest != rows;
  if (other) {
    out << fmt::format(
        "note    held-out set {} has other rows than {}, which said what was best so far: the best checkpoint and the "
        "patience begin anew\n",
        name, set == name ? "the one of that name" : set);
    *this = {};
  }
  set = name;
  digest = rows;
  return other;
}

bool BestSoFar::add(int64_t at, double value, double threshold) {
  evaluated = at;
  if (at == 0) return false;  // no checkpoint could hold it
  if (loss && !(value < *loss - threshold)) {
    ++stale;
    return false;
  }
  loss = value;
  iteration = at;
  stale = 0;
  return true;
}

OrderedJson BestSoFar::json() const {
  return {{"evaluated", evaluated},
          {"loss", loss ? OrderedJson(*loss) : OrderedJson(nullptr)},
          {"iteration", iteration},
          {"stale", stale},
          {"set", set},
          {"digest", digest}};
}

BestSoFar BestSoFar::from(const OrderedJson& json, const std::string& where) {
  BestSoFar best;
  if (json.is_null()) return best;
  const Json plain = Json::parse(json.dump());
  const JsonObject object(plain, where);
  best.evaluated = object.integer("evaluated");
  if (object.has("loss")) best.loss = object.number("loss");
  best.iteration = object.integer("iteration");
  best.stale = object.integer("stale");
  best.set = object.string("set", "");
  best.digest = object.string("digest", "");
  return best;
}

HeldOut::HeldOut(const SftOptions& options, const Base& base, const PreferenceInputs& preference,
                 const Control& control)
    : options_(options), preference_(preference) {
  if (options.eval_interval == 0) return;
  for (const EvalSet& set : options.eval_sets)
    sets_.emplace_back(set.path, base, options.rows, row_kind(options.loss), control);
}

size_t HeldOut::deciding() const {
  for (size_t i = 0; i < options_.eval_sets.size(); ++i)
    if (options_.eval_sets[i].name == options_.save_best_set) return i;
  return 0;
}

void HeldOut::describe(std::ostream& out) const {
  for (const TrainingRows& set : sets_) set.describe("eval", out);
}

train::Evaluation HeldOut::evaluate(size_t set, TrainingRun& run,
                                    const std::function<void(int64_t, int64_t)>& on_progress) {
  TrainingRows& rows = sets_[set];
  const train::Loss loss = preference_.of_set(run.trainer(), rows, run.memory().max_tokens);
  train::Evaluation sums;
  std::vector<train::Datum> datums;
  int64_t held = 0;
  for (int64_t row = 0; row < rows.size(); ++row) {
    const size_t before = datums.size();
    rows.append(row, datums);
    for (size_t i = before; i < datums.size(); ++i) held += datums[i].size();
    if (held < run.memory().max_tokens && row + 1 < rows.size()) continue;
    preference_.add_reference(run.trainer(), datums);
    run.trainer().evaluate(datums, loss, sums);
    datums.clear();
    held = 0;
    on_progress(row + 1, rows.size());
  }
  return sums;
}

}  // namespace lockstep::recipes
