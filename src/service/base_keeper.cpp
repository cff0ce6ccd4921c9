#include "service/base_keeper.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "core/fs.h"
#include "model/tensor_places.h"

namespace lockstep::service {

BaseKeeper::BaseKeeper(Serving& serving, std::string weights_root)
    : serving_(serving),
      weights_root_(std::move(weights_root)),
      stream_(std::make_unique<Stream>(
          StreamOptions{.threads = serving.base()->stream->threads(), .device = serving.base()->stream->device()})),
      newest_(serving.base()->model->version()) {}

BaseKeeper::~BaseKeeper() = default;

const load::Base& BaseKeeper::whole(const std::shared_ptr<const load::Base>& base) const {
  if (!base->model)
    throw NoBase({.what = "the base's weights have been given back", .attempt = "again when they have been loaded"});
  return *base;
}

// With working_.
BaseKeeper::Report BaseKeeper::swap(load::Base next, const std::string& label) {
  const lora::BaseVersion version = next.model->version();
  Report report{.base_version = version.number};
  AdapterRegistry& adapters = serving_.adapters();
  // The engine must know the base before versions on it are published, and the old one until they are.
  report.outdated = adapters.rebase(next, [&] { serving_.set_base(next); });
  newest_ = version;
  serving_.retire_bases();
  on_host_.reset();
  arriving_.clear();
  const std::lock_guard lock(state_);
  weights_released_ = false;
  label_ = label.empty() ? std::to_string(newest_.number) : label;
  return report;
}

BaseKeeper::Report BaseKeeper::load_directory(const std::string& path, const std::string& label) {
  const std::lock_guard one_at_a_time(working_);
  const std::shared_ptr<const load::Base> old = serving_.base();
  const lora::BaseVersion version{newest_.number + 1};
  if (path.empty()) return swap(load::updated_base(*old, version, old->path, {}, *stream_), label);
  if (weights_root_.empty())
    throw ConfigError({.what = "no directory is open for weights", .got = path, .wanted = "a root for weights"});
  const fs::ReadRoot root{fs::Path(weights_root_)};
  const std::optional<fs::Path> directory = root.resolve(path);
  if (!directory)
    throw ConfigError({.what = "the weights lie outside the directory that weights may be read from",
                       .got = path,
                       .wanted = "a path below that directory"});
  return swap(load::updated_base(*old, version, *directory, root, *stream_), label);
}

// Copies of what has come; a tensor that comes again takes the place of the first.
void BaseKeeper::keep(const NamedTensors& tensors) {
  for (const NamedTensor& tensor : tensors) {
    std::erase_if(arriving_, [&](const model::HostTensor& kept) { return kept.tensor.name == tensor.name; });
    model::HostTensor kept{.memory = Buffer(tensor.bytes(), Buffer::Fill::none), .tensor = tensor};
    tensor.read(kept.memory.data(), 0, tensor.bytes());
    kept.tensor.tensor.data = kept.memory.data();
    arriving_.push_back(std::move(kept));
  }
}

BaseKeeper::Report BaseKeeper::load_tensors(const NamedTensors& tensors, const std::string& label,
                                            const std::string& where) {
  const std::lock_guard one_at_a_time(working_);
  const std::shared_ptr<const load::Base> old = serving_.base();
  const lora::BaseVersion version{newest_.number + 1};
  if (on_host_) throw NoBase({.what = "the base's weights are in host memory", .attempt = "resume the weights first"});
  if (old->model) return swap(load::updated_base(*old, version, tensors, *stream_, where), label);
  std::set<std::string> wanted;
  for (const model::TensorPlace& place : model::tensor_places(old->config)) wanted.insert(place.name);
  for (const NamedTensor& tensor : tensors)
    if (!wanted.contains(tensor.name) && tensor.name != "lm_head.weight" && !tensor.name.ends_with("inv_freq"))
      throw FormatError({.what = "the model has no tensor of this name", .where = where + ": " + tensor.name});
  keep(tensors);
  NamedTensors all;
  for (const model::HostTensor& kept : arriving_) {
    wanted.erase(kept.tensor.name);
    all.push_back(kept.tensor);
  }
  if (!wanted.empty()) return {.base_version = newest_.number, .missing = static_cast<int64_t>(wanted.size())};
  return swap(load::updated_base(*old, version, all, *stream_, where), label);
}

std::string BaseKeeper::label() const {
  const std::lock_guard lock(state_);
  return label_;
}

void BaseKeeper::set_label(std::string label) {
  const std::lock_guard lock(state_);
  label_ = std::move(label);
}

model::HostTensor BaseKeeper::read(const std::string& name, int64_t rows) const {
  const std::lock_guard one_at_a_time(working_);
  const std::shared_ptr<const load::Base> base = serving_.base();
  return model::read_weight(base->config, whole(base).model->weights(), name, rows, *stream_);
}

std::vector<load::TensorHash> BaseKeeper::checksums() const {
  const std::lock_guard one_at_a_time(working_);
  return load::tensor_hashes(whole(serving_.base()), *stream_);
}

void BaseKeeper::take_snapshot() {
  const std::lock_guard one_at_a_time(working_);
  snapshot_ = load::tensor_hashes(whole(serving_.base()), *stream_);
}

std::vector<std::string> BaseKeeper::changed_since() const {
  const std::lock_guard one_at_a_time(working_);
  if (snapshot_.empty())
    throw ConfigError({.what = "there is nothing to compare the weights with", .attempt = "take a snapshot first"});
  const std::vector<load::TensorHash> now = load::tensor_hashes(whole(serving_.base()), *stream_);
  std::vector<std::string> changed;
  for (const load::TensorHash& hash : now)
    if (std::ranges::find(snapshot_, hash) == snapshot_.end()) changed.push_back(hash.name);
  return changed;
}

void BaseKeeper::release(Part part, bool for_good) {
  const std::lock_guard one_at_a_time(working_);
  if (part == Part::keys) {
    serving_.release_memory();
    const std::lock_guard lock(state_);
    keys_released_ = true;
    return;
  }
  const std::shared_ptr<const load::Base> base = serving_.base();
  const bool moves = base->stream->device() == Device::cuda;
  if (base->model && (for_good || moves)) {
    if (!for_good) on_host_ = load::moved_base(*base, Device::cpu, *stream_);
    serving_.drop_base();
    serving_.adapters().move_base(*serving_.base());
  }
  if (for_good) on_host_.reset();
  const std::lock_guard lock(state_);
  weights_released_ = true;
}

void BaseKeeper::resume(Part part) {
  const std::lock_guard one_at_a_time(working_);
  if (part == Part::weights && on_host_) {
    load::Base back = load::moved_base(*on_host_, stream_->device(), *stream_);
    serving_.set_base(back);
    serving_.adapters().move_base(back);
    on_host_.reset();  // last: what fails can be tried again
  }
  const std::lock_guard lock(state_);
  (part == Part::keys ? keys_released_ : weights_released_) = false;
}

bool BaseKeeper::is_released(Part part) const {
  const std::lock_guard lock(state_);
  return part == Part::keys ? keys_released_ : weights_released_;
}

}  // namespace lockstep::service
