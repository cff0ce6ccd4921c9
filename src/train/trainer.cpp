#include "train/trainer.h"

#include <algorithm>
#include <cmath>
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
#include "train/not_finite_error.h"
#include "train/trainer_impl.h"

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

}  // namespace

Trainer::Impl::Impl(std::shared_ptr<const model::Model> m, std::shared_ptr<const lora::AdapterLayout> l,
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

lora::AdapterVersion Trainer::Impl::version_of(std::shared_ptr<const Buffer> values) {
  return model::with_extras({.base = model->version(), .layout = layout, .weights = std::move(values)},
                            model->weights(), stream);
}

OpenStep& Trainer::Impl::require_open() {
  if (!open)
    throw ConfigError({.what = "no step is open", .where = "Trainer", .wanted = "begin_step before this call"});
  return *open;
}

void Trainer::Impl::require_closed(const char* what) const {
  if (open) throw ConfigError({.what = what, .where = step_name(), .attempt = "optim_step or abandon_step first"});
}

void Trainer::Impl::forget_step() {
  open.reset();
  lanes.begin(0);
}

void Trainer::Impl::update(const Buffer& next, ConstTensor gradient, double lr, float clip) {
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

void Trainer::Impl::require_rate(double lr) const {
  if (lr >= 0 && std::isfinite(lr)) return;
  throw ConfigError({.what = "impossible learning rate",
                     .where = step_name(),
                     .got = std::to_string(lr),
                     .wanted = "a finite number >= 0"});
}

// The first of the modules in the adapter's order whose gradient is not finite; empty: all are.
std::string Trainer::Impl::not_finite_module(ConstTensor gradient) const {
  const auto is_finite = [&](int64_t offset, int64_t floats) {
    if (offset == lora::kAbsent) return true;
    return std::isfinite(kernels::sum_of_squares(ConstTensor(gradient.f32() + offset, DType::f32, {floats}), stream));
  };
  for (const lora::Pair& pair : layout->pairs)
    if (!is_finite(pair.a_offset, pair.in * pair.rank) || !is_finite(pair.b_offset, pair.rank * pair.out))
      return pair.module().name;
  if (const auto& head = layout->value_head)
    if (!is_finite(head->weight, head->width) || !is_finite(head->bias, 1)) return "value head";
  for (const lora::OwnTensors& own : layout->own)
    if (!is_finite(own.magnitude, own.module.out) || !is_finite(own.bias, own.module.out) ||
        !is_finite(own.weight, own.weight_rows() * own.weight_cols()))
      return own.module.name;
  return "";
}

std::string Trainer::Impl::discard() {
  require_open().require_complete();
  const std::string module = not_finite_module(lanes.total());
  forget_step();
  return module;
}

StepReport Trainer::Impl::finish(double lr) {
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
  t.require_closed("a step is already open");
  const OpenStep& step = t.open.emplace(plan, lanes_of(t.group, t.options.gradient_lanes), t.step_name());
  t.lanes.begin(step.terms());
  return step.own();
}

void Trainer::watch_rows(RowWatch watch) {
  impl_->row_watch = std::move(watch);
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

void Trainer::finish_update() {
  impl_->stream.synchronize();
}

void Trainer::release_memory() {
  impl_->pass.release_memory();
  impl_->counters.release();
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
  for (RowOutputs& rows : impl_->score(datums, adapter, {}, between)) all.push_back(std::move(rows.logprob));
  return all;
}

std::vector<RowOutputs> Trainer::row_outputs(std::span<const Datum> datums, const lora::AdapterVersion* adapter,
                                             const RowQuery& query, const Progress& between) {
  return impl_->score(datums, adapter, query, between);
}

std::vector<std::vector<float>> Trainer::values(std::span<const Datum> datums, const Progress& between) {
  return impl_->values(datums, between);
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
std::vector<int64_t> Trainer::order_of(std::span<const Datum> datums, int64_t datums_per_term) const {
  const TrainerOptions& o = impl_->options;
  if (o.balance == Balance::none) return {};
  return balanced_order(datums, datums_per_term, o.gradient_lanes, o.balance, impl_->model->config());
}

Trainer::State Trainer::state() const {
  return {.steps = impl_->steps,
          .first_moment = host_copy(impl_->first_moment, impl_->stream),
          .second_moment = host_copy(impl_->second_moment, impl_->stream)};
}

int64_t Trainer::copy_moments(HostMirror& first, HostMirror& second) const {
  first.copy(impl_->first_moment, impl_->first_moment.bytes(), impl_->stream);
  second.copy(impl_->second_moment, impl_->second_moment.bytes(), impl_->stream);
  return impl_->steps;
}

void Trainer::restore(int64_t steps, Buffer first_moment, Buffer second_moment) {
  impl_->require_closed("state cannot be restored inside a step");
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
