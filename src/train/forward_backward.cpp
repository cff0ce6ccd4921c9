// Gradients of open steps: micro-batches of one trainer's samples, or of several trainers' on one base.
#include <exception>
#include <utility>

#include "core/error.h"
#include "core/transfer.h"
#include "parallel/agree.h"
#include "train/checks.h"
#include "train/joint_step.h"
#include "train/not_finite_error.h"
#include "train/shared_prompts.h"
#include "train/trainer_impl.h"
#include "train/value_pass.h"

namespace lockstep::train {

namespace {

// The error with `place` ahead of where it says it happened.
std::exception_ptr placed(const DataError& error, const std::string& place) {
  Fault fault = error.fault();
  fault.where = place + (fault.where.empty() ? "" : ", " + fault.where);
  return dynamic_cast<const NotFiniteError*>(&error) != nullptr
             ? std::make_exception_ptr(NotFiniteError(std::move(fault)))
             : std::make_exception_ptr(DataError(std::move(fault)));
}

// f(), whose DataErrors then name the place, if there is one.
template <class F>
auto at_place(const std::string& place, const F& f) {
  if (place.empty()) return f();
  try {
    return f();
  } catch (const DataError& error) {
    std::rethrow_exception(placed(error, place));
  }
}

// Whether both losses read the same outputs of the head, so that their rows may share a pass without a difference in
// any bit. A critic's values have a pass of their own.
bool may_share(const Loss& a, const Loss& b) {
  return !reads_values(a) && !reads_values(b) && needs_entropy(a) == needs_entropy(b) &&
         needs_entropy_gradient(a) == needs_entropy_gradient(b) && !reads_candidates(a) && !reads_candidates(b);
}

// The gradients of a batch's outputs, which the losses of its parts write.
struct OutputGradients {
  std::vector<float> logprob, entropy, candidate_logprob;
  int64_t candidates = 0;  // of a row

  OutputGradients(const MicroBatch& batch, const Loss& loss)
      : logprob(batch.tokens.size()),
        entropy(needs_entropy_gradient(loss) ? batch.tokens.size() : 0),
        candidate_logprob(batch.candidates.size()),
        candidates(static_cast<int64_t>(batch.candidates.size() / batch.tokens.size())) {}

  LossGradients part(size_t row, size_t rows) {
    const auto own = static_cast<size_t>(candidates);
    return {.logprob = std::span(logprob).subspan(row, rows),
            .entropy = entropy.empty() ? std::span<float>() : std::span(entropy).subspan(row, rows),
            .candidate_logprob = std::span(candidate_logprob).subspan(row * own, rows * own)};
  }
  model::HeadGradients view() const {
    model::HeadGradients all{.logprob_T = of(logprob), .entropy_T = of(entropy)};
    if (candidates > 0)
      all.candidate_logprob_TK =
          ConstTensor(candidate_logprob.data(), DType::f32, {static_cast<int64_t>(logprob.size()), candidates});
    return all;
  }

 private:
  static ConstTensor of(const std::vector<float>& values) {
    return values.empty() ? ConstTensor()
                          : ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
  }
};

int64_t rows_of(std::span<const Datum> datums, std::span<const int64_t> shared = {}) {
  int64_t rows = 0;
  for (const Datum& datum : datums) rows += datum.size();
  for (const int64_t once : shared) rows -= once;
  return rows;
}

}  // namespace

LossScale Trainer::Impl::scale() const {
  return {.num_samples = open->plan().num_samples,
          .weight_total = open->plan().weight_total,
          .per_token = open->plan().per_token,
          .first_sample = open->next(),
          .divisor = open->plan().divisor};
}

void Trainer::Impl::check(std::span<const Datum> datums, const Loss& loss) const {
  if (reads_values(loss)) require_value_head(*layout);
  open->require_room(static_cast<int64_t>(datums.size()), loss);
  for (size_t i = 0; i < datums.size(); ++i) {
    require_readable(datums[i], open->next() + static_cast<int64_t>(i), model->config());
    require_weights(datums[i], open->next() + static_cast<int64_t>(i));
  }
}

std::vector<int64_t> Trainer::Impl::shared_prompts(std::span<const Datum> datums, int64_t enough) const {
  // Dropout gives each sample inputs of its own.
  if (!open->plan().share_prompts || options.dropout > 0) return std::vector<int64_t>(datums.size());
  const auto lane = [&](size_t i) {
    return lane_of(open->term_of(open->next() + static_cast<int64_t>(i)), open->terms(), options.gradient_lanes);
  };
  return train::shared_prompts(datums, max_shared_rows(stream.device()), lane, enough);
}

// Each share gives as many of its next datums as fit beside those of the shares before it.
std::vector<Trainer::Impl::Part> Trainer::Impl::next_parts(std::span<Share> shares) const {
  std::vector<Part> parts;
  int64_t room = options.max_tokens;
  for (Share& share : shares) {
    if (share.left.empty() || (!parts.empty() && !may_share(parts.front().share.loss, share.loss))) continue;
    const Impl& owner = share.trainer;
    const size_t reach = owner.open->samples_in_lanes(share.left.size(), owner.options.gradient_lanes,
                                                      open_lanes(*owner.layout, stream.device()));
    std::vector<int64_t> shared = owner.shared_prompts(share.left.first(reach), room);
    shared.resize(micro_batch_size(share.left.first(shared.size()), shared, room, owner.open->plan().datums_per_term));
    const std::span<const Datum> datums = share.left.first(shared.size());
    const int64_t rows = rows_of(datums, shared);
    if (!parts.empty() && rows > room) continue;
    parts.push_back({share, datums, std::move(shared)});
    room -= rows;
  }
  return parts;
}

void Trainer::Impl::add_lanes(std::vector<lora::GradientRows>& rows, const MicroBatch& batch, size_t first_sequence,
                              size_t count) {
  const int64_t first = open->next();
  for (size_t i = 0; i < count; ++i) {
    const int64_t begin = batch.sequence_begin[first_sequence + i], end = batch.sequence_begin[first_sequence + i + 1];
    rows.push_back({.row_begin = begin,
                    .rows = end - begin,
                    .gradient = lanes.lane(open->term_of(first + static_cast<int64_t>(i)))});
  }
}

LossOutput Trainer::Impl::run_values(const MicroBatch& batch, const Part& part, const kernels::LoraDropout& dropout) {
  Impl& owner = part.share.trainer;
  const RowValues values = forward_values(pass, batch, owner.current, pass_options(false), dropout, counters, stream);
  std::vector<float> d_value(values.value_T.size());
  LossOutput output = at_place(part.share.place, [&] {
    return evaluate_loss(part.share.loss, owner.scale(), part.datums, values.value_T, {}, d_value, {});
  });
  std::vector<lora::GradientRows> rows;
  owner.add_lanes(rows, batch, 0, part.datums.size());
  backward_values(pass, batch, owner.current, values, d_value, rows, counters, stream);
  return output;
}

void Trainer::Impl::tell_rows(std::span<const Datum> datums, std::span<const float> logprob,
                              std::span<const float> entropy) const {
  if (!row_watch) return;
  size_t row = 0;
  for (size_t i = 0; i < datums.size(); ++i) {
    const auto rows = static_cast<size_t>(datums[i].size());
    const int64_t sample = open->next() + static_cast<int64_t>(i);
    const std::vector<int64_t>& order = open->plan().order;
    row_watch(order.empty() ? sample : order[static_cast<size_t>(sample)], logprob.subspan(row, rows),
              entropy.empty() ? entropy : entropy.subspan(row, rows));
    row += rows;
  }
}

// One forward and one backward; the losses of each part.
std::vector<LossOutput> Trainer::Impl::run(std::span<const Part> parts) {
  MicroBatch batch;
  std::vector<const lora::AdapterVersion*> adapters;  // of each sequence
  for (const Part& part : parts) {
    append(batch, pack(part.datums, part.share.trainer.open->next(), true));
    batch.shared.insert(batch.shared.end(), part.shared.begin(), part.shared.end());
    adapters.insert(adapters.end(), part.datums.size(), &part.share.trainer.current);
  }
  kernels::LoraDropout dropout;
  const Arena::Scope scope(counters);
  if (options.dropout > 0)
    dropout = {.p = options.dropout,
               .key = options.seed,
               .step = static_cast<uint32_t>(steps),
               .sample = upload(std::span<const int32_t>(batch.sample), counters, stream),
               .position = upload(std::span<const int32_t>(batch.position), counters, stream)};
  const Loss& any = parts.front().share.loss;
  if (reads_values(any)) return {run_values(batch, parts.front(), dropout)};
  if (reads_candidates(any)) pack_candidates(batch, parts.front().datums);  // the only part (may_share)
  const model::HeadOutputs head = pass.forward(batch.view(), adapters, pass_options(needs_entropy(any)), dropout);

  OutputGradients gradients(batch, any);
  const auto candidates = static_cast<size_t>(gradients.candidates);
  std::vector<LossOutput> outputs;
  std::vector<lora::GradientRows> lane_rows;
  size_t row = 0, sequence = 0;
  for (const Part& part : parts) {
    const auto rows = static_cast<size_t>(rows_of(part.datums));
    const auto slice = [&](ConstTensor values, size_t per_row = 1) {
      return values.empty() ? std::span<const float>() : std::span(values.f32() + row * per_row, rows * per_row);
    };
    const auto losses = [&] {
      return evaluate_loss(part.share.loss, part.share.trainer.scale(), part.datums,
                           {.logprob = slice(head.logprob_T),
                            .entropy = slice(head.entropy_T),
                            .candidate_logprob = slice(head.candidate_logprob_TK, candidates)},
                           gradients.part(row, rows));
    };
    outputs.push_back(at_place(part.share.place, losses));
    part.share.trainer.tell_rows(part.datums, slice(head.logprob_T), slice(head.entropy_T));
    part.share.trainer.add_lanes(lane_rows, batch, sequence, part.datums.size());
    row += rows, sequence += part.datums.size();
  }
  pass.backward(gradients.view(), lane_rows);
  return outputs;
}

std::vector<LossReport> Trainer::Impl::accumulate(std::span<Share> shares, const Progress& between) {
  size_t left = 0, all = 0;
  for (const Share& share : shares) {
    at_place(share.place, [&] { share.trainer.check(share.left, share.loss); });
    all += share.left.size();
  }
  for (left = all; left > 0;) {
    Impl& first = shares.front().trainer;
    const std::vector<Part> parts = first.next_parts(shares);
    const std::vector<LossOutput> outputs = first.run(parts);
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto& [share, datums, shared] = parts[p];
      for (size_t i = 0; i < datums.size(); ++i) {
        share.trainer.open->add({.loss = outputs[p].sample_losses[i],
                                 .weight = datums[i].weight_sum(),
                                 .tokens = datums[i].size(),
                                 .metrics = outputs[p].sample_metrics[i]});
        share.report.loss += outputs[p].sample_losses[i];
        share.report.metrics.add(outputs[p].sample_metrics[i]);
        share.report.tokens += datums[i].size();
      }
      share.trainer.lanes.consumed(share.trainer.open->term_of(share.trainer.open->next()));
      share.left = share.left.subspan(datums.size());
      left -= datums.size();
    }
    if (between) between(static_cast<int64_t>(all - left));
  }
  std::vector<LossReport> reports;
  for (const Share& share : shares) reports.push_back(share.report);
  return reports;
}

// Any exception ends all of these steps.
std::vector<LossReport> Trainer::Impl::accumulate_or_abandon(std::span<Share> shares, const Progress& between) {
  Impl& first = shares.front().trainer;
  std::exception_ptr failure;
  try {
    return accumulate(shares, between);
  } catch (const DataError& error) {
    failure = shares.size() > 1 ? std::current_exception() : placed(error, first.step_name());
  } catch (...) {
    failure = std::current_exception();
  }
  for (const Share& share : shares) share.trainer.forget_step();
  parallel::agree(first.group, failure, step_error);  // throws; the other ranks reach it in optim_step
  return {};
}

LossReport Trainer::forward_backward(std::span<const Datum> datums, const Loss& loss, const Progress& between) {
  impl_->require_open();
  Impl::Share share{.trainer = *impl_, .left = datums, .loss = loss};
  return Impl::accumulate_or_abandon({&share, 1}, between).front();
}

// ConfigError unless these trainers' rows may share a pass.
void Trainer::Impl::require_one_pass(const Impl& first, const Impl& other, const std::string& place) {
  const auto require = [&](bool same, const char* what, const char* wanted) {
    if (!same) throw ConfigError({.what = what, .where = place, .wanted = wanted});
  };
  const TrainerOptions &a = first.options, &b = other.options;
  require(&first != &other, "a trainer has one open step", "each trainer once");
  require(first.model == other.model, "trainers share a pass on one base", "the model of the first trainer");
  require(&first.stream == &other.stream, "trainers share a pass on one stream", "the stream of the first trainer");
  require(a.temperature == b.temperature, "trainers that share a pass have one temperature",
          "TrainerOptions::temperature of the first trainer");
  require(a.dropout == b.dropout && (a.dropout == 0 || (a.seed == b.seed && first.steps == other.steps)),
          "trainers that share a pass drop the same inputs",
          "dropout 0, or the same TrainerOptions::dropout, seed and number of steps as the first trainer");
}

std::vector<LossReport> forward_backward(std::span<const TrainerBatch> batches, const Progress& between) {
  std::vector<Trainer::Impl::Share> shares;
  for (size_t i = 0; i < batches.size(); ++i) {
    Trainer::Impl& trainer = *batches[i].trainer.impl_;
    const std::string place = "batch " + std::to_string(i) + ", " + trainer.step_name();
    trainer.require_open();
    for (const Trainer::Impl::Share& before : shares) Trainer::Impl::require_one_pass(before.trainer, trainer, place);
    shares.push_back({.trainer = trainer,
                      .left = batches[i].datums,
                      .loss = batches[i].loss,
                      .place = batches.size() > 1 ? place : std::string()});
  }
  if (shares.empty()) return {};
  return Trainer::Impl::accumulate_or_abandon(shares, between);
}

}  // namespace lockstep::train
