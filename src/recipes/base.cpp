#include "recipes/base.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <ostream>

#include "checkpoint/base_fingerprint.h"
#include "core/hash.h"
#include "model/config.h"
#include "recipes/run_log.h"

namespace lockstep::recipes {

namespace {

fs::Path home_directory() {
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::Path(home) : fs::Path("/nonexistent");
}

}  // namespace

fs::Path model_directory(const BaseOptions& options) {
  return checkpoint::resolve_hf_checkpoint(options.hf_checkpoint, home_directory() / ".cache" / "huggingface" / "hub");
}

Base read_base_config(const BaseOptions& options) {
  Base base;
  base.path = model_directory(options);
  base.name = options.hf_checkpoint;
  const checkpoint::HfDirectory directory(base.path);
  base.config = model::parse_config(directory.config(), (base.path / "config.json").string());
  base.generation_config = directory.generation_config();
  base.eos = directory.eos_token_ids();
  return base;
}

StreamOptions stream_options(const BaseOptions& options) {
  StreamOptions stream = options.stream;
  stream.device = parse_device(options.device);
  return stream;
}

DType weight_dtype(const Base& base) {
  const std::string file = (base.path / "config.json").string();
  const Json json = read_json(file);
  const JsonObject config(json, file);
  const std::string name = config.string("torch_dtype", config.string("dtype", "float32"));
  return name == "bfloat16" ? DType::bf16 : name == "float16" ? DType::f16 : DType::f32;
}

namespace {

// Kept for the next command, since it takes as long as reading all weights.
std::string fingerprint_of_files(const checkpoint::HfDirectory& directory, Stream& stream) {
  return checkpoint::cached_weights_fingerprint(directory,
                                                home_directory() / ".cache" / "lockstep" / "fingerprints.json", stream);
}

std::shared_ptr<const model::Weights> file_weights(Base& base, Stream& stream, const Control& control) {
  const Stopwatch watch;
  checkpoint::HfDirectory directory(base.path);
  directory.open_weights();
  const Stopwatch hashing;
  base.weights_fingerprint = fingerprint_of_files(directory, stream);
  const double hashing_ms = hashing.ms();
  const auto progress = [&](double done) {
    if (control.terminal) *control.info << fmt::format("\rloading {} {:3.0f} %", base.name, 100 * done) << std::flush;
  };
  auto weights = model::Weights::load(base.config, directory.tensors(), stream, progress, base.path.string());
  stream.synchronize();
  base.load_seconds = (watch.ms() - hashing_ms) / 1000;
  return weights;
}

// The same numbers in every run and on every device, so their identity is the shape they fill.
std::shared_ptr<const model::Weights> dummy_weights(Base& base, Stream& stream, const Control& control) {
  constexpr uint64_t kSeed = 0;
  *control.info << "note    --load-format dummy: the weights are random numbers\n";
  Sha256 hash;
  hash.update("dummy weights\n");
  hash.update(read_json((base.path / "config.json").string()).dump());
  base.weights_fingerprint = hash.hex();
  const auto weights = model::Weights::random(base.config, weight_dtype(base), kSeed, stream);
  stream.synchronize();
  return weights;
}

}  // namespace

Base identify_base(const BaseOptions& options, Stream& stream) {
  Base base = read_base_config(options);
  checkpoint::HfDirectory directory(base.path);
  directory.map_weights();
  base.weights_fingerprint = fingerprint_of_files(directory, stream);
  base.fingerprint = checkpoint::base_fingerprint(base.weights_fingerprint, model::canonical_text(base.config));
  return base;
}

Base load_base(const BaseOptions& options, Stream& stream, const Control& control) {
  const auto start = std::chrono::steady_clock::now();
  Base base = read_base_config(options);
  const bool dummy = options.load_format == LoadFormat::dummy;
  const auto weights = dummy ? dummy_weights(base, stream, control) : file_weights(base, stream, control);
  base.fingerprint = checkpoint::base_fingerprint(base.weights_fingerprint, model::canonical_text(base.config));
  base.model =
      std::make_shared<const model::Model>(base.config, weights, model::Model::default_logits_bytes(stream.device()));
  base.stream = &stream;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (control.terminal) *control.info << "\r";
  *control.info << fmt::format(
      "base    {} ({}, {} layers, width {}, {:.1f} M parameters, {:.0f} MB) in {:.1f} s, fingerprint {}\n", base.name,
      model::family_name(base.config.family), base.config.layers, base.config.width,
      static_cast<double>(model::num_parameters(base.config)) * 1e-6, static_cast<double>(weights->bytes()) * 1e-6,
      seconds.count(), base.fingerprint.substr(0, 12));
  if (const DType stored = weights->embedding.dtype; stream.device() == Device::cuda && stored != DType::bf16)
    *control.info << fmt::format("note    the base is {}; the GPU holds it rounded to bf16\n", dtype_name(stored));
  return base;
}

text::Tokenizer load_tokenizer(const Base& base) {
  return text::Tokenizer::load(base.path.string());
}

text::Tokenizer load_tokenizer(const BaseOptions& options) {
  return text::Tokenizer::load(model_directory(options).string());
}

void require_in_vocabulary(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where) {
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      throw DataError({.what = "token outside the vocabulary of the model",
                       .where = where,
                       .got = std::to_string(token),
                       .wanted = fmt::format("0 to {}", vocab_size - 1),
                       .attempt = "the tokenizer that belongs to this model, without added tokens"});
}

int32_t eos_for_training(const Base& base, const text::Tokenizer& tokenizer) {
  const fs::Path file = base.path / "tokenizer_config.json";
  if (fs::exists(file)) {
    const Json config = read_json(file.string());
    const auto entry = config.find("eos_token");
    if (entry != config.end() && !entry->is_null()) {
      const std::string text = entry->is_object()   ? entry->value("content", "")
                               : entry->is_string() ? entry->get<std::string>()
                                                    : "";
      if (const auto id = tokenizer.token_id(text)) return *id;
      throw FormatError({.what = "eos_token is not in the vocabulary", .where = file.string(), .got = entry->dump()});
    }
  }
  if (base.eos.empty())
    throw DataError({.what = "no end token is known, and completions must end with one",
                     .where = base.path.string(),
                     .wanted = "eos_token in tokenizer_config.json or eos_token_id in config.json",
                     .attempt = "rows of {\"tokens\", \"loss_mask\"}, which need no end token"});
  return base.eos.front();
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

}  // namespace lockstep::recipes
