#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/profile_range.h"
#include "core/transfer.h"
#include "kernels/adamw.h"
#include "model/adapter_extras.h"
#include "parallel/agree.h"
#include "parallel/gather.h"
#include "parallel/tree_sum.h"
#include "train/adapter_update.h"
#include "train/checks.h"
#include "train/gradient_lanes.h"
#include "train/micro_batch.h"
#include "train/not_finite_error.h"
#include "train/open_step.h"
#include "train/weight_pool.h"

namespace lockstep::train {

namespace {

// Of gradients and moments.
size_t flat_bytes(const lora::AdapterLayout& layout) {
  return static_cast<size_t>(layout.num_trained) * sizeof(float);
}

void require_bytes(size_t got, size_t wanted, const char* what) {
  if (got == wanted) return;
  throw ShapeError({.what = "a flat array does not fit the adapter's layout",
                    .where = what,
                    .got = std::to_string(got) + " bytes",
                    .wanted = std::to_string(wanted) + " bytes"});
}

// Of a step, as another rank threw it.
std::exception_ptr step_error(std::string_view kind, Fault fault) {
  if (kind == "NotFiniteError") return std::make_exception_ptr(NotFiniteError(std::move(fault)));
  return make_error(kind, std::move(fault));
}

}  // namespace

struct Trainer::Impl {
  std::unique_ptr<parallel::Group> alone;  // where no group was given
  parallel::Group& group;
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const lora::AdapterLayout> layout;
  TrainerOptions options;
  Stream& stream;
  model::TrainPass pass;
  std::shared_ptr<WeightPool> pool;
  lora::AdapterVersion current;  // with what passes read beside the weights
  Buffer first_moment, second_moment;
  int64_t steps = 0;
  bool whole = true;
  GradientLanes lanes;
  Arena counters;  // of dropout
  std::optional<OpenStep> open;

  Impl(std::shared_ptr<const model::Model> m, std::shared_ptr<const lora::AdapterLayout> l,
       std::shared_ptr<const Buffer> w, const TrainerOptions& o, Stream& s, parallel::Group* g)
      : alone(g ? nullptr : parallel::solo()),
        group(g ? *g : *alone),
        model(std::move(m)),
        layout(std::move(l)),
        options(o),
        stream(s),
        pass(*model, stream),
        pool(std::make_shared<WeightPool>(lora::weight_bytes(*layout, stream.device()), stream.device())),
        first_moment(flat_bytes(*layout), Buffer::Fill::zero, stream.device()),
        second_moment(flat_bytes(*layout), Buffer::Fill::zero, stream.device()),
        lanes(layout->num_trained, lanes_of(group, options.gradient_lanes), stream),
        counters(stream.device()) {
    require_options(options);
    require_bytes(w->bytes(), lora::weight_bytes(*layout, stream.device()), "weights");
    current = version_of(std::move(w));
  }

  lora::AdapterVersion version_of(std::shared_ptr<const Buffer> values) {
    return model::with_extras({.base = model->version(), .layout = layout, .weights = std::move(values)},
                              model->weights(), stream);
  }

  // For messages; steps are counted from 1 there, as in the log.
  std::string step_name() const { return "step " + std::to_string(steps + 1); }
  Tensor flat(const Buffer& buffer) const { return Tensor(buffer.data(), DType::f32, {layout->num_trained}); }
  model::TrainOptions pass_options(bool entropy) const {
    return {.inv_temperature = 1.0f / options.temperature, .recompute = options.recompute, .entropy = entropy};
  }

  OpenStep& require_open() {
    if (!open)
      throw ConfigError({.what = "no step is open", .where = "Trainer", .wanted = "begin_step before this call"});
    return *open;
  }

  void forget_step() {
    open.reset();
    lanes.begin(0);
  }

  std::vector<lora::GradientRows> rows_by_lane(const MicroBatch& batch, int64_t first) {
    std::vector<lora::GradientRows> rows;
    for (size_t i = 0; i + 1 < batch.sequence_begin.size(); ++i)
      rows.push_back({.row_begin = batch.sequence_begin[i],
                      .rows = batch.sequence_begin[i + 1] - batch.sequence_begin[i],
                      .gradient = lanes.lane(open->term_of(first + static_cast<int64_t>(i)))});
    return rows;
  }

  LossOutput run(std::span<const Datum> datums, const Loss& loss) {
    const int64_t first = open->next();
    const MicroBatch batch = pack(datums, first, true);
    kernels::LoraDropout dropout;
    const Arena::Scope scope(counters);
    if (options.dropout > 0)
      dropout = {.p = options.dropout,
                 .key = options.seed,
                 .step = static_cast<uint32_t>(steps),
                 .sample = upload(std::span<const int32_t>(batch.sample), counters, stream),
                 .position = upload(std::span<const int32_t>(batch.position), counters, stream)};
    const model::HeadOutputs head = pass.forward(batch.view(), current, pass_options(needs_entropy(loss)), dropout);

    const size_t rows = batch.tokens.size();
    std::vector<float> d_logprob(rows), d_entropy(needs_entropy_gradient(loss) ? rows : 0);
    const std::span<const float> entropy =
        head.entropy_T.empty() ? std::span<const float>() : std::span(head.entropy_T.f32(), rows);
    LossOutput output = evaluate_loss(loss,
                                      {.num_samples = open->plan().num_samples,
                                       .weight_total = open->plan().weight_total,
                                       .per_token = open->plan().per_token,
                                       .first_sample = first,
                                       .divisor = open->plan().divisor},
                                      datums, std::span(head.logprob_T.f32(), rows), entropy, d_logprob, d_entropy);
    const auto view = [](const std::vector<float>& values) {
      return values.empty() ? ConstTensor()
                            : ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
    };
    pass.backward(view(d_logprob), view(d_entropy), rows_by_lane(batch, first));
    return output;
  }

  // One micro-batch from the front of `datums`; returns how many it took.
  size_t consume(std::span<const Datum> datums, const Loss& loss, LossReport& call) {
    const int64_t max_lanes = open_lanes(*layout, stream.device());
    const size_t reach = open->samples_in_lanes(datums.size(), options.gradient_lanes, max_lanes);
    const size_t count = micro_batch_size(datums.first(reach), options.max_tokens, open->plan().datums_per_term);
    const LossOutput output = run(datums.first(count), loss);
    for (size_t i = 0; i < count; ++i) {
      open->add({.loss = output.sample_losses[i],
                 .weight = datums[i].weight_sum(),
                 .tokens = datums[i].size(),
                 .metrics = output.sample_metrics[i]});
      call.loss += output.sample_losses[i];
      call.metrics.add(output.sample_metrics[i]);
      call.tokens += datums[i].size();
    }
    lanes.consumed(open->term_of(open->next()));
    return count;
  }

  LossReport accumulate(std::span<const Datum> datums, const Loss& loss, const Progress& between) {
    open->require_room(static_cast<int64_t>(datums.size()), loss);
    for (size_t i = 0; i < datums.size(); ++i) {
      require_readable(datums[i], open->next() + static_cast<int64_t>(i), model->config());
      require_weights(datums[i], open->next() + static_cast<int64_t>(i));
    }
    LossReport call;
    const size_t all = datums.size();
    while (!datums.empty()) {
      datums = datums.subspan(consume(datums, loss, call));
      if (between) between(static_cast<int64_t>(all - datums.size()));
    }
    return call;
  }

  void update(const Buffer& next, ConstTensor gradient, double lr, float clip) {
    update_adapter(next,
                   {.layout = *layout,
                    .weights = *current.weights,
                    .first_moment = first_moment,
                    .second_moment = second_moment,
                    .gradient = gradient,
                    .step = {.lr = lr,
                             .beta1 = options.beta1,
                             .beta2 = options.beta2,
                             .eps = options.eps,
                             .weight_decay = options.weight_decay,
                             .step = steps + 1,
                             .grad_scale = clip},
                    .lr_ratio = options.lr_ratio},
                   stream);
  }

  void require_rate(double lr) const {
    if (lr >= 0 && std::isfinite(lr)) return;
    throw ConfigError({.what = "impossible learning rate",
                       .where = step_name(),
                       .got = std::to_string(lr),
                       .wanted = "a finite number >= 0"});
  }

  // The first of the modules in the adapter's order whose gradient is not finite; empty: all are.
  std::string not_finite_module(ConstTensor gradient) const {
    const auto is_finite = [&](int64_t offset, int64_t floats) {
      if (offset == lora::kAbsent) return true;
      return std::isfinite(kernels::sum_of_squares(ConstTensor(gradient.f32() + offset, DType::f32, {floats}), stream));
    };
    for (const lora::Pair& pair : layout->pairs)
      if (!is_finite(pair.a_offset, pair.in * pair.rank) || !is_finite(pair.b_offset, pair.rank * pair.out))
        return pair.module().name;
    for (const lora::OwnTensors& own : layout->own)
      if (!is_finite(own.magnitude, own.module.out) || !is_finite(own.bias, own.module.out) ||
          !is_finite(own.weight, own.weight_rows() * own.weight_cols()))
        return own.module.name;
    return "";
  }

  std::string discard() {
    require_open().require_complete();
    const std::string module = not_finite_module(lanes.total());
    forget_step();
    return module;
  }

  StepReport finish(double lr) {
    std::shared_ptr<Buffer> next;
    Tensor gradient;
    parallel::agree_after(
        group,
        [&] {  // with the memory that the rest needs: there a rank cannot fail by itself
          require_open().require_complete();
          require_rate(lr);
          next = pool->take();
          gradient = lanes.total();
        },
        step_error);
    StepReport report = open->report(group, lr);
    parallel::together(group, [&] {
      parallel::tree_sum(gradient, lanes.partial(), group, stream);
      report.grad_norm = std::sqrt(kernels::sum_of_squares(gradient, stream));
    });
    if (!std::isfinite(report.grad_norm)) {
      const std::string module = not_finite_module(gradient);
      forget_step();
      throw NotFiniteError({.what = "the gradient is not finite",
                            .where = step_name() + (module.empty() ? "" : ", " + module),
                            .got = "norm " + std::to_string(report.grad_norm),
                            .attempt = "a smaller learning rate; the adapter is as it was before this step"});
    }
    const double clip = options.clip_grad > 0 ? std::min(1.0, options.clip_grad / (report.grad_norm + 1e-6)) : 1.0;
    whole = false;
    parallel::together(group, [&] {
      update(*next, gradient, lr, static_cast<float>(clip));
      current = version_of(std::move(next));
    });
    ++steps;
    whole = true;
    forget_step();
    return report;
  }

  std::vector<RowOutputs> score(std::span<const Datum> datums, const lora::AdapterVersion* adapter, bool entropy,
                                const Progress& between) {
    for (size_t i = 0; i < datums.size(); ++i) require_readable(datums[i], static_cast<int64_t>(i), model->config());
    std::vector<RowOutputs> all;
    while (!datums.empty()) {
      const size_t count = micro_batch_size(datums, options.max_tokens);
      const MicroBatch batch = pack(datums.first(count), 0, false);
      const model::HeadOutputs head = pass.score(batch.view(), adapter, pass_options(entropy));
      for (size_t i = 0; i < count; ++i) {
        const auto rows_of = [&](ConstTensor values) {
          return std::vector<float>(values.f32() + batch.sequence_begin[i], values.f32() + batch.sequence_begin[i + 1]);
        };
        all.push_back({.logprob = rows_of(head.logprob_T), .entropy = {}});
        if (entropy) all.back().entropy = rows_of(head.entropy_T);
      }
      datums = datums.subspan(count);
      if (between) between(static_cast<int64_t>(all.size()));
    }
    return all;
  }

  // This rank's share of the datums: whole terms; the last rank also takes the remainder.
  std::vector<SampleEvaluation> evaluate_share(std::span<const Datum> datums, const Loss& loss) {
    const int64_t per_term = datums_per_term(loss), terms = static_cast<int64_t>(datums.size()) / per_term;
    const auto from = [&](int rank) {
      return rank == group.size() ? datums.size() : static_cast<size_t>(rank * terms / group.size() * per_term);
    };
    size_t first = from(group.rank());
    const size_t end = from(group.rank() + 1);
    model::TrainOptions pass_options = this->pass_options(false);
    pass_options.greedy = true;
    std::vector<SampleEvaluation> samples;
    while (first < end) {
      const std::span<const Datum> left = datums.subspan(first, end - first);
      const std::span<const Datum> now = left.first(micro_batch_size(left, options.max_tokens, per_term));
      const MicroBatch batch = pack(now, 0, true);
      std::ranges::copy(evaluate_samples(loss, now, static_cast<int64_t>(first), batch,
                                         pass.score(batch.view(), &current, pass_options)),
                        std::back_inserter(samples));
      first += now.size();
    }
    return samples;
  }
};

Trainer::Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
                 std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(layout), std::move(weights), options, stream, nullptr)) {
}
Trainer::Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
                 std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream, parallel::Group& group)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(layout), std::move(weights), options, stream, &group)) {}
Trainer::~Trainer() = default;

SampleRange Trainer::begin_step(const StepPlan& plan) {
  Impl& t = *impl_;
  if (t.open)
    throw ConfigError(
        {.what = "a step is already open", .where = t.step_name(), .attempt = "optim_step or abandon_step first"});
  const OpenStep& step = t.open.emplace(plan, lanes_of(t.group, t.options.gradient_lanes), t.step_name());
  t.lanes.begin(step.terms());
  return step.own();
}

LossReport Trainer::forward_backward(std::span<const Datum> datums, const Loss& loss, const Progress& between) {
  impl_->require_open();
  std::exception_ptr failure;
  try {
    return impl_->accumulate(datums, loss, between);
  } catch (const DataError& error) {
    Fault fault = error.fault();
    fault.where = impl_->step_name() + (fault.where.empty() ? "" : ", " + fault.where);
    failure = dynamic_cast<const NotFiniteError*>(&error) != nullptr
                  ? std::make_exception_ptr(NotFiniteError(std::move(fault)))
                  : std::make_exception_ptr(DataError(std::move(fault)));
  } catch (...) {
    failure = std::current_exception();
  }
  abandon_step();
  parallel::agree(impl_->group, failure, step_error);  // throws; the other ranks reach it in optim_step
  return {};
}

StepReport Trainer::optim_step(double lr) {
  const ProfileRange range("train/optimizer");
  try {
    return impl_->finish(lr);
  } catch (...) {
    if (impl_->group.size() > 1) abandon_step();  // it may have been closed where it failed
    throw;
  }
}

void Trainer::release_memory() {
  impl_->pass.release_memory();
}

void Trainer::abandon_step() {
  impl_->forget_step();
}

std::string Trainer::discard_step() {
  return impl_->discard();
}

std::vector<std::vector<float>> Trainer::logprobs(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                                  const Progress& between) {
  std::vector<std::vector<float>> all;
  for (RowOutputs& rows : impl_->score(datums, adapter, false, between)) all.push_back(std::move(rows.logprob));
  return all;
}

std::vector<RowOutputs> Trainer::row_outputs(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                             const Progress& between) {
  return impl_->score(datums, adapter, true, between);
}

void Trainer::evaluate(std::span<const Datum> datums, const Loss& loss, Evaluation& sums) {
  std::vector<SampleEvaluation> mine;
  parallel::agree_after(impl_->group, [&] {
    for (size_t i = 0; i < datums.size(); ++i) {
      require_readable(datums[i], static_cast<int64_t>(i), impl_->model->config());
      require_weights(datums[i], static_cast<int64_t>(i));
    }
    mine = impl_->evaluate_share(datums, loss);
  });
  for (const SampleEvaluation& sample : parallel::gather_values<SampleEvaluation>(impl_->group, mine)) sums.add(sample);
}

lora::AdapterVersion Trainer::adapter() const {
  return impl_->current;
}

int64_t Trainer::steps() const {
  return impl_->steps;
}
bool Trainer::whole() const {
  return impl_->whole;
}
const lora::AdapterLayout& Trainer::layout() const {
  return *impl_->layout;
}

Trainer::State Trainer::state() const {
  return {.steps = impl_->steps,
          .first_moment = host_copy(impl_->first_moment, impl_->stream),
          .second_moment = host_copy(impl_->second_moment, impl_->stream)};
}

void Trainer::restore(int64_t steps, Buffer first_moment, Buffer second_moment) {
  if (impl_->open)
    throw ConfigError({.what = "state cannot be restored inside a step",
                       .where = impl_->step_name(),
                       .attempt = "optim_step or abandon_step first"});
  if (steps < 0)
    throw ConfigError(
        {.what = "impossible optimizer state", .where = "steps", .got = std::to_string(steps), .wanted = "at least 0"});
  require_bytes(first_moment.bytes(), flat_bytes(*impl_->layout), "first moment");
  require_bytes(second_moment.bytes(), flat_bytes(*impl_->layout), "second moment");
  impl_->steps = steps;
  impl_->first_moment = on_device(std::move(first_moment), impl_->stream);
  impl_->second_moment = on_device(std::move(second_moment), impl_->stream);
  impl_->whole = true;
}

}  // namespace lockstep::train
