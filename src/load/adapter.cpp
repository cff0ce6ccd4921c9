#include "load/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "load/base_copies.h"
#include "model/adapter_extras.h"

namespace lockstep::load {

std::vector<std::string> check_base(const checkpoint::PeftDirectory& directory, const Base& base) {
  const auto& metadata = directory.metadata();
  if (!metadata || metadata->base_fingerprint.empty() || metadata->base_fingerprint == base.fingerprint) return {};
  const bool older = metadata->weights_fingerprint.empty();
  const std::string& weights = older ? metadata->base_fingerprint : metadata->weights_fingerprint;
  if (older && weights == base.weights_fingerprint)
    return {
        fmt::format("{} is of an older build: the base's weights are those it was made with, its config.json is "
                    "not compared",
                    directory.path().string())};
  if (weights == base.weights_fingerprint)
    throw FormatError({.what = "this adapter was made with another config.json of the same weights",
                       .where = directory.metadata_file().string() + ": base_fingerprint",
                       .got = "base fingerprint " + metadata->base_fingerprint,
                       .wanted = base.fingerprint + " (" + base.name + ")",
                       .attempt = "the config.json it was made with: its sizes, rotary embedding (rope_theta, "
                                  "rope_scaling), rms_norm_eps, sliding window or tied embeddings differ"});
  throw FormatError({.what = "this adapter belongs to another base model",
                     .where = directory.metadata_file().string() + ": base_fingerprint",
                     .got = "base fingerprint " + metadata->base_fingerprint,
                     .wanted = base.fingerprint + " (" + base.name + ")",
                     .attempt = "the base it was trained on; if that is this one and another build of Lockstep "
                                "saved the adapter, take base_fingerprint out of this file"});
}

CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base) {
  if (directory.config().value_width > 0)
    throw FormatError({.what = "the adapter has a value head: it is a critic, and no policy",
                       .where = directory.path().string(),
                       .attempt = "the actor that was trained with it"});
  return check_adapter(directory, base, directory.config());
}

CheckedAdapter check_adapter(const checkpoint::PeftDirectory& directory, const Base& base,
                             const lora::LoraConfig& config) {
  CheckedAdapter checked{.weights_file = directory.weights_file(), .notes = check_base(directory, base)};
  if (config.value_width > 0 && config.value_width != base.config.width)
    throw ShapeError({.what = "the value head was made for another model",
                      .where = directory.path().string(),
                      .got = fmt::format("width {}", config.value_width),
                      .wanted = fmt::format("{}", base.config.width)});
  checked.layout = lora::resolve_layout(config, model::linear_modules(base.config));
  lora::check_ranks(*checked.layout, base.stream->device());
  lora::check_tensors(*checked.layout, directory.header(), checked.weights_file.string());
  if (const std::vector<std::string> unread = directory.unread_files(); !unread.empty())
    checked.notes.push_back(
        fmt::format("not read: {} (only the program that wrote them understands them)", fmt::join(unread, ", ")));
  checked.policy = {directory.path().string(), directory.metadata() ? directory.metadata()->version : 0};
  return checked;
}

lora::AdapterVersion load_adapter(const CheckedAdapter& checked, const checkpoint::AdapterWeights& weights,
                                  const Base& base) {
  check_base_copies(lora::base_copies(checked.layout->config, weights.tensors()), rows_of(base),
                    checked.weights_file.string());
  Buffer values = lora::import_tensors(*checked.layout, weights.tensors(), checked.weights_file.string());
  lora::AdapterVersion adapter{
      .policy = checked.policy,
      .base = base.model->version(),
      .layout = checked.layout,
      .weights = std::make_shared<const Buffer>(lora::place_weights(std::move(values), *checked.layout, *base.stream))};
  return model::with_extras(std::move(adapter), base.model->weights(), *base.stream);
}

}  // namespace lockstep::load
