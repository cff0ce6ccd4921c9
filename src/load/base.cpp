#include "load/base.h"

#include <algorithm>
#include <chrono>

#include "checkpoint/base_fingerprint.h"
#include "checkpoint/hf_directory.h"
#include "core/hash.h"
#include "kernels/attention_checks.h"
#include "model/config.h"

namespace lockstep::load {
namespace {

using Clock = std::chrono::steady_clock;

// Kept for the next command, since it takes as long as reading all weights.
std::string fingerprint_of_files(const checkpoint::HfDirectory& directory, const Caches& caches, Stream& stream) {
  if (caches.fingerprints.empty()) return checkpoint::weights_fingerprint(directory.tensors(), stream);
  return checkpoint::cached_weights_fingerprint(directory, caches.fingerprints, stream);
}

std::string fingerprint_of(const Base& base) {
  return checkpoint::base_fingerprint(base.weights_fingerprint, model::canonical_text(base.config));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void complete(Base& base, std::shared_ptr<const model::Weights> weights, Stream& stream) {
  base.fingerprint = fingerprint_of(base);
  base.model = std::make_shared<const model::Model>(base.config, std::move(weights),
                                                    model::Model::default_logits_bytes(stream.device()));
  base.stream = &stream;
}

}  // namespace

Caches caches_below(const std::string& home) {
  if (home.empty()) return {};
  const fs::Path cache = fs::Path(home) / ".cache";
  return {.models = cache / "huggingface" / "hub", .fingerprints = cache / "lockstep" / "fingerprints.json"};
}

fs::Path model_directory(const std::string& checkpoint, const Caches& caches) {
  return checkpoint::resolve_hf_checkpoint(checkpoint,
                                           caches.models.empty() ? fs::Path("/nonexistent") : caches.models);
}

Base read_base_config(const std::string& checkpoint, const Caches& caches) {
  Base base;
  base.caches = caches;
  base.path = model_directory(checkpoint, caches);
  base.name = checkpoint;
  const checkpoint::HfDirectory directory(base.path);
  base.config = model::parse_config(directory.config(), (base.path / "config.json").string());
  base.generation_config = directory.generation_config();
  base.eos = directory.eos_token_ids();
  return base;
}

Base identify_base(const std::string& checkpoint, Stream& stream, const Caches& caches) {
  Base base = read_base_config(checkpoint, caches);
  checkpoint::HfDirectory directory(base.path);
  directory.open_weights();
  base.weights_fingerprint = fingerprint_of_files(directory, base.caches, stream);
  base.fingerprint = fingerprint_of(base);
  return base;
}

DType weight_dtype(const Base& base) {
  const std::string file = (base.path / "config.json").string();
  const Json json = read_json(file);
  const JsonObject config(json, file);
  const std::string name = config.string("torch_dtype", config.string("dtype", "float32"));
  return name == "bfloat16" ? DType::bf16 : name == "float16" ? DType::f16 : DType::f32;
}

void load_weights(Base& base, Stream& stream, const std::function<void(double)>& progress) {
  kernels::require_head_dim(base.config.head_dim, stream.device());
  const Clock::time_point start = Clock::now();
  checkpoint::HfDirectory directory(base.path);
  directory.open_weights();
  const Clock::time_point hashing = Clock::now();
  base.weights_fingerprint = fingerprint_of_files(directory, base.caches, stream);
  const double hashing_seconds = seconds_since(hashing);
  auto weights = model::Weights::load(base.config, directory.tensors(), stream, progress, base.path.string());
  stream.synchronize();
  base.load_seconds = seconds_since(start) - hashing_seconds;
  complete(base, std::move(weights), stream);
}

void fill_weights(Base& base, Stream& stream) {
  constexpr uint64_t kSeed = 0;
  kernels::require_head_dim(base.config.head_dim, stream.device());
  Sha256 hash;
  hash.update("dummy weights\n");
  hash.update(read_json((base.path / "config.json").string()).dump());
  base.weights_fingerprint = hash.hex();
  auto weights = model::Weights::random(base.config, weight_dtype(base), kSeed, stream);
  stream.synchronize();
  complete(base, std::move(weights), stream);
}

std::string fingerprint_of_memory(const model::Model& model, Stream& stream) {
  std::vector<Buffer> memory;
  NamedTensors tensors;
  const auto keep = [&](const NamedTensor& named) {
    const ConstTensor& t = named.tensor;
    const size_t bytes = static_cast<size_t>(t.elements() * dtype_bytes(t.dtype));
    Buffer copy(bytes, Buffer::Fill::none);
    std::copy_n(static_cast<const std::byte*>(t.data), bytes, static_cast<std::byte*>(copy.data()));
    NamedTensor kept = named;
    kept.tensor.data = copy.data();
    tensors.push_back(kept);
    memory.push_back(std::move(copy));
  };
  model.weights().visit(model.config(), keep, stream);
  return checkpoint::base_fingerprint(checkpoint::weights_fingerprint(tensors, stream),
                                      model::canonical_text(model.config()));
}

}  // namespace lockstep::load
