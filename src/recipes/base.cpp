#include "recipes/base.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "core/device_facts.h"
#include "core/error.h"
#include "core/gpu.h"
#include "model/spec.h"
#include "recipes/resume.h"
#include "recipes/run_log.h"

namespace lockstep::recipes {

StreamOptions stream_options(const BaseOptions& options) {
  StreamOptions stream = options.stream;
  stream.device = parse_device(options.device);
  return stream;
}

std::span<const LoadFormat> load_formats() {
  static constexpr LoadFormat kFormats[] = {
      {.name = "auto", .help = "the model's files"},
      {.name = "dummy", .help = "random weights in the shapes of config.json; needs no weight files", .random = true}};
  return kFormats;
}

Base read_base(const BaseOptions& options) {
  return load::read_base_config(options.hf_checkpoint, load::caches_below(options.home));
}

Base load_base(const BaseOptions& options, Stream& stream, const Control& control) {
  const Stopwatch watch;
  Base base = read_base(options);
  const auto format = std::ranges::find(load_formats(), options.load_format, &LoadFormat::name);
  if (format == load_formats().end())
    throw ConfigError({.what = "unknown way to load weights",
                       .where = "BaseOptions::load_format",
                       .got = options.load_format,
                       .wanted = "a name of load_formats"});
  if (format->random) {
    *control.info << fmt::format("note    BaseOptions::load_format {}: the weights are random numbers\n", format->name);
    load::fill_weights(base, stream);
  } else {
    load::load_weights(base, stream, [&](double done) {
      if (control.terminal) *control.info << fmt::format("\rloading {} {:3.0f} %", base.name, 100 * done) << std::flush;
    });
  }
  if (control.terminal) *control.info << "\r";
  *control.info << fmt::format(
      "base    {} ({}, {} layers, width {}, {:.1f} M parameters, {:.0f} MB) in {:.1f} s, fingerprint {}\n", base.name,
      base.config.family, base.config.layers, base.config.width,
      static_cast<double>(model::num_parameters(base.config)) * 1e-6,
      static_cast<double>(base.model->weights().bytes()) * 1e-6, watch.ms() / 1000, base.fingerprint.substr(0, 12));
  const kernels::PackedWeight& matrix = base.model->weights().layers.front().down.weight;
  const std::string stored = dtype_name(matrix.dtype), packed = kernels::format_name(matrix.format);
  if (packed != stored)
    *control.info << fmt::format("note    the base is {}; {} holds it rounded to {}\n", stored,
                                 device_text(stream.device()), packed);
  return base;
}

parallel::Identity rank_identity(const Base& base, const Stream& stream) {
  return {{"base", base.fingerprint},
          {"device", device_name(base)},
          {"GPU generation", stream.device() == Device::cpu ? "" : std::to_string(gpu_identity().compute_capability)}};
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

}  // namespace lockstep::recipes
