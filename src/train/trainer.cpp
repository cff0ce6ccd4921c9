#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/transfer.h"
#include "kernels/adamw.h"
#include "train/checks.h"
#include "train/gradient_lanes.h"
#include "train/micro_batch.h"
#include "train/weight_pool.h"

namespace lockstep::train {

namespace {

// Row weights of a step against its plan: both are sums of the same numbers, perhaps in another order.
constexpr double kWeightTolerance = 1e-6;

struct OpenStep {
  StepPlan plan;
  int64_t consumed = 0;
  double weight = 0;
  StepReport report{};
};

size_t flat_bytes(const lora::AdapterLayout& layout) {
  return static_cast<size_t>(layout.num_floats) * sizeof(float);
}

void require_bytes(size_t got, size_t wanted, const char* what) {
  if (got == wanted) return;
  throw ShapeError({.what = "a flat array does not fit the adapter's layout",
                    .where = what,
                    .got = std::to_string(got) + " bytes",
                    .wanted = std::to_string(wanted) + " bytes"});
}

// How many of the `count` samples from `first` on lie in the first `max_lanes` lanes that they touch: whole terms.
size_t samples_in_lanes(int64_t first, size_t count, const StepPlan& plan, int64_t max_lanes) {
  size_t i = 0;
  for (int64_t lanes = 0, last = -1; i < count; i += static_cast<size_t>(plan.datums_per_term)) {
    const int lane =
        lane_of((first + static_cast<int64_t>(i)) / plan.datums_per_term, plan.num_samples / plan.datums_per_term);
    if (lane != last && ++lanes > max_lanes) break;
    last = lane;
  }
  return i;
}

// Calls piece(first, floats, ratio) for stretches of the flat array that learn at one rate: all of it, or (LoRA+) every
// B apart from what lies between. Tensors start at multiples of 16, and so do the stretches.
template <class Piece>
void for_each_rate(const lora::AdapterLayout& layout, double ratio, const Piece& piece) {
  if (ratio == 1) return piece(0, layout.num_floats, 1.0);
  std::vector<std::pair<int64_t, int64_t>> b;
  for (const lora::Pair& pair : layout.pairs) {
    const int64_t end = (pair.b_offset + pair.rank * pair.out + 15) / 16 * 16;
    b.emplace_back(pair.b_offset, std::min(end, layout.num_floats));
  }
  std::sort(b.begin(), b.end());
  int64_t at = 0;
  for (const auto& [begin, end] : b) {
    if (begin > at) piece(at, begin - at, 1.0);
    piece(begin, end - begin, ratio);
    at = end;
  }
  if (at < layout.num_floats) piece(at, layout.num_floats - at, 1.0);
}

}  // namespace

struct Trainer::Impl {
  std::shared_ptr<const model::Model> model;
  std::shared_ptr<const lora::AdapterLayout> layout;
  TrainerOptions options;
  Stream& stream;
  model::TrainPass pass;
  std::shared_ptr<WeightPool> pool;
  std::shared_ptr<const Buffer> weights;
  Buffer first_moment, second_moment;
  int64_t steps = 0;
  GradientLanes lanes;
  Arena counters;  // of dropout
  std::optional<OpenStep> open;

  Impl(std::shared_ptr<const model::Model> m, std::shared_ptr<const lora::AdapterLayout> l,
       std::shared_ptr<const Buffer> w, const TrainerOptions& o, Stream& s)
      : model(std::move(m)),
        layout(std::move(l)),
        options(o),
        stream(s),
        pass(*model, stream),
        pool(std::make_shared<WeightPool>(lora::weight_bytes(*layout, stream.device()), stream.device())),
        weights(std::move(w)),
        first_moment(flat_bytes(*layout), Buffer::Fill::zero, stream.device()),
        second_moment(flat_bytes(*layout), Buffer::Fill::zero, stream.device()),
        lanes(layout->num_floats, stream),
        counters(stream.device()) {
    require_options(options);
    require_bytes(weights->bytes(), lora::weight_bytes(*layout, stream.device()), "weights");
  }

  // For messages; steps are counted from 1 there, as in the log.
  std::string step_name() const { return "step " + std::to_string(steps + 1); }
  Tensor flat(const Buffer& buffer) const { return Tensor(buffer.data(), DType::f32, {layout->num_floats}); }
  model::TrainOptions pass_options(bool entropy) const {
    return {.inv_temperature = 1.0f / options.temperature, .recompute = options.recompute, .entropy = entropy};
  }

  OpenStep& require_open() {
    if (!open)
      throw ConfigError({.what = "no step is open", .where = "Trainer", .wanted = "begin_step before this call"});
    return *open;
  }

  Buffer on_device(Buffer host) const {
    return stream.device() == Device::cpu ? std::move(host) : device_copy(host.data(), host.bytes(), stream);
  }

  void forget_step() {
    open.reset();
    lanes.begin(0);
  }

  std::vector<lora::GradientRows> lanes_of(const MicroBatch& batch, int64_t first) {
    std::vector<lora::GradientRows> rows;
    for (size_t i = 0; i + 1 < batch.sequence_begin.size(); ++i)
      rows.push_back({.row_begin = batch.sequence_begin[i],
                      .rows = batch.sequence_begin[i + 1] - batch.sequence_begin[i],
                      .gradient = lanes.lane((first + static_cast<int64_t>(i)) / open->plan.datums_per_term)});
    return rows;
  }

  LossOutput run(std::span<const Datum> datums, const Loss& loss) {
    const int64_t first = open->consumed;
    const MicroBatch batch = pack(datums, first, true);
    const lora::AdapterVersion adapter{.version = 0, .layout = layout, .weights = weights};
    lora::DeltaDropout dropout;
    const Arena::Scope scope(counters);
    if (options.dropout > 0)
      dropout = {.p = options.dropout,
                 .key = options.seed,
                 .step = static_cast<uint32_t>(steps),
                 .sample = upload(std::span<const int32_t>(batch.sample), counters, stream),
                 .position = upload(std::span<const int32_t>(batch.position), counters, stream)};
    const model::HeadOutputs head = pass.forward(batch.view(), adapter, pass_options(needs_entropy(loss)), dropout);

    const size_t rows = batch.tokens.size();
    std::vector<float> d_logprob(rows), d_entropy(needs_entropy_gradient(loss) ? rows : 0);
    const std::span<const float> entropy =
        head.entropy_T.empty() ? std::span<const float>() : std::span(head.entropy_T.f32(), rows);
    LossOutput output = evaluate_loss(loss,
                                      {.num_samples = open->plan.num_samples,
                                       .weight_total = open->plan.weight_total,
                                       .per_token = open->plan.per_token,
                                       .first_sample = first},
                                      datums, std::span(head.logprob_T.f32(), rows), entropy, d_logprob, d_entropy);
    const auto view = [](const std::vector<float>& values) {
      return values.empty() ? ConstTensor()
                            : ConstTensor(values.data(), DType::f32, {static_cast<int64_t>(values.size())});
    };
    pass.backward(view(d_logprob), view(d_entropy), lanes_of(batch, first));
    return output;
  }

  // One micro-batch from the front of `datums`; returns how many it took.
  size_t consume(std::span<const Datum> datums, const Loss& loss, LossReport& call) {
    const int64_t max_lanes = open_lanes(static_cast<int64_t>(flat_bytes(*layout)), stream.device());
    const size_t reach = samples_in_lanes(open->consumed, datums.size(), open->plan, max_lanes);
    const size_t count = micro_batch_size(datums.first(reach), options.max_tokens, open->plan.datums_per_term);
    const LossOutput output = run(datums.first(count), loss);
    StepReport& step = open->report;
    for (size_t i = 0; i < count; ++i) {
      step.loss += output.sample_losses[i];
      call.loss += output.sample_losses[i];
      step.metrics.add(output.sample_metrics[i]);
      call.metrics.add(output.sample_metrics[i]);
      open->weight += datums[i].weight_sum();
      step.tokens += datums[i].size();
      call.tokens += datums[i].size();
    }
    open->consumed += static_cast<int64_t>(count);
    lanes.consumed(open->consumed / open->plan.datums_per_term);
    return count;
  }

  void update(const Buffer& next, ConstTensor gradient, double lr, float clip) {
    const Tensor working = lora::working_weights(next, *layout);
    for_each_rate(*layout, options.lr_ratio, [&](int64_t first, int64_t count, double ratio) {
      const auto part = [&](Tensor all) { return Tensor(all.f32() + first, DType::f32, {count}); };
      const Tensor rounded =
          working.empty() ? Tensor() : Tensor(static_cast<BFloat16*>(working.data) + first, DType::bf16, {count});
      kernels::adamw(part(flat(next)), rounded, part(flat(*weights)), part(flat(first_moment)),
                     part(flat(second_moment)), ConstTensor(gradient.f32() + first, DType::f32, {count}),
                     {.lr = lr * ratio,
                      .beta1 = options.beta1,
                      .beta2 = options.beta2,
                      .eps = options.eps,
                      .weight_decay = options.weight_decay,
                      .step = steps + 1,
                      .grad_scale = clip},
                     stream);
    });
    if (!working.empty()) lora::turn_working(next, *layout, stream);
  }

  void require_complete(const OpenStep& step, double lr) const {
    if (step.consumed != step.plan.num_samples)
      throw ConfigError({.what = "the step is not complete",
                         .where = step_name(),
                         .got = std::to_string(step.consumed) + " samples",
                         .wanted = std::to_string(step.plan.num_samples),
                         .attempt = "forward_backward on the others"});
    if (step.plan.per_token && !(std::abs(step.weight - step.plan.weight_total) <= kWeightTolerance * step.weight))
      throw ConfigError({.what = "the step's weights are not those of its plan",
                         .where = step_name(),
                         .got = std::to_string(step.weight),
                         .wanted = std::to_string(step.plan.weight_total)});
    if (!(lr >= 0) || !std::isfinite(lr))
      throw ConfigError({.what = "impossible learning rate",
                         .where = step_name(),
                         .got = std::to_string(lr),
                         .wanted = "a finite number >= 0"});
  }
};

Trainer::Trainer(std::shared_ptr<const model::Model> model, std::shared_ptr<const lora::AdapterLayout> layout,
                 std::shared_ptr<const Buffer> weights, TrainerOptions options, Stream& stream)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(layout), std::move(weights), options, stream)) {}
Trainer::~Trainer() = default;

void Trainer::begin_step(const StepPlan& plan) {
  if (impl_->open)
    throw ConfigError(
        {.what = "a step is already open", .where = impl_->step_name(), .attempt = "optim_step or abandon_step first"});
  if (plan.num_samples < 1)
    throw ConfigError({.what = "a step needs samples",
                       .where = impl_->step_name(),
                       .got = std::to_string(plan.num_samples),
                       .wanted = "at least 1"});
  if (plan.per_token && !(plan.weight_total > 0 && std::isfinite(plan.weight_total)))
    throw ConfigError({.what = "a loss per token needs the step's total weight",
                       .where = impl_->step_name(),
                       .got = std::to_string(plan.weight_total),
                       .wanted = "a positive number"});
  if (plan.datums_per_term < 1 || plan.num_samples % plan.datums_per_term != 0)
    throw ConfigError({.what = "a step holds whole terms of its loss",
                       .where = impl_->step_name(),
                       .got = std::to_string(plan.num_samples) + " samples",
                       .wanted = "a multiple of " + std::to_string(plan.datums_per_term)});
  impl_->lanes.begin(plan.num_samples / plan.datums_per_term);
  impl_->open = OpenStep{.plan = plan};
}

LossReport Trainer::forward_backward(std::span<const Datum> datums, const Loss& loss) {
  OpenStep& step = impl_->require_open();
  try {
    const int64_t left = step.plan.num_samples - step.consumed;
    if (static_cast<int64_t>(datums.size()) > left)
      throw ConfigError({.what = "more samples than the step was opened for",
                         .where = impl_->step_name(),
                         .got = std::to_string(datums.size()),
                         .wanted = "at most " + std::to_string(left) + " more"});
    const int64_t per_term = datums_per_term(loss);
    if (per_term != step.plan.datums_per_term || static_cast<int64_t>(datums.size()) % per_term != 0)
      throw ConfigError({.what = "datums of a term belong in one call, and the plan says how many they are",
                         .where = impl_->step_name(),
                         .got = std::to_string(datums.size()) + " samples, planned in terms of " +
                                std::to_string(step.plan.datums_per_term),
                         .wanted = "a multiple of " + std::to_string(per_term)});
    for (size_t i = 0; i < datums.size(); ++i) {
      require_readable(datums[i], step.consumed + static_cast<int64_t>(i), impl_->model->config());
      require_weights(datums[i], step.consumed + static_cast<int64_t>(i));
    }
    LossReport call;
    while (!datums.empty()) datums = datums.subspan(impl_->consume(datums, loss, call));
    return call;
  } catch (const DataError& error) {
    Fault fault = error.fault();
    fault.where = impl_->step_name() + (fault.where.empty() ? "" : ", " + fault.where);
    abandon_step();
    throw DataError(std::move(fault));
  } catch (...) {
    abandon_step();
    throw;
  }
}

StepReport Trainer::optim_step(double lr) {
  Impl& t = *impl_;
  t.require_complete(t.require_open(), lr);
  StepReport report = std::move(t.open->report);
  const ConstTensor gradient = t.lanes.total();
  report.grad_norm = std::sqrt(kernels::sum_of_squares(gradient, t.stream));
  if (!std::isfinite(report.grad_norm)) {
    abandon_step();
    throw DataError({.what = "the gradient is not finite",
                     .where = t.step_name(),
                     .got = "norm " + std::to_string(report.grad_norm),
                     .attempt = "a smaller learning rate; the adapter is as it was before this step"});
  }
  const double clip = t.options.clip_grad > 0 ? std::min(1.0, t.options.clip_grad / (report.grad_norm + 1e-6)) : 1.0;
  const std::shared_ptr<Buffer> next = t.pool->take();
  t.update(*next, gradient, lr, static_cast<float>(clip));
  t.weights = next;
  ++t.steps;
  t.forget_step();
  return report;
}

void Trainer::release_memory() {
  impl_->pass.release_memory();
}

void Trainer::abandon_step() {
  impl_->forget_step();
}

std::vector<std::vector<float>> Trainer::logprobs(std::span<const Datum> datums, const lora::AdapterVersion* adapter) {
  for (size_t i = 0; i < datums.size(); ++i)
    require_readable(datums[i], static_cast<int64_t>(i), impl_->model->config());
  std::vector<std::vector<float>> all;
  while (!datums.empty()) {
    const size_t count = micro_batch_size(datums, impl_->options.max_tokens);
    const MicroBatch batch = pack(datums.first(count), 0, false);
    const float* logprob = impl_->pass.score(batch.view(), adapter, impl_->pass_options(false)).logprob_T.f32();
    for (size_t i = 0; i < count; ++i)
      all.emplace_back(logprob + batch.sequence_begin[i], logprob + batch.sequence_begin[i + 1]);
    datums = datums.subspan(count);
  }
  return all;
}

void Trainer::evaluate(std::span<const Datum> datums, const Loss& loss, Evaluation& sums) {
  for (size_t i = 0; i < datums.size(); ++i) {
    require_readable(datums[i], static_cast<int64_t>(i), impl_->model->config());
    require_weights(datums[i], static_cast<int64_t>(i));
  }
  model::TrainOptions options = impl_->pass_options(false);
  options.greedy = true;
  const lora::AdapterVersion adapter = snapshot(0);
  while (!datums.empty()) {
    const std::span<const Datum> now =
        datums.first(micro_batch_size(datums, impl_->options.max_tokens, datums_per_term(loss)));
    const MicroBatch batch = pack(now, 0, true);
    sums.add(loss, now, batch, impl_->pass.score(batch.view(), &adapter, options));
    datums = datums.subspan(now.size());
  }
}

lora::AdapterVersion Trainer::snapshot(int64_t version) const {
  return {.version = version, .layout = impl_->layout, .weights = impl_->weights};
}

int64_t Trainer::steps() const {
  return impl_->steps;
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
  impl_->first_moment = impl_->on_device(std::move(first_moment));
  impl_->second_moment = impl_->on_device(std::move(second_moment));
}

}  // namespace lockstep::train
