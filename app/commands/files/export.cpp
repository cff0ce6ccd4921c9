#include "commands/files/export.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <optional>
#include <ostream>

#include "checkpoint/base_fingerprint.h"
#include "checkpoint/gguf/tokenizer.h"
#include "checkpoint/new_files.h"
#include "commands/files/export_gguf.h"
#include "commands/files/output_directory.h"
#include "core/file_lock.h"
#include "core/half.h"
#include "load/base_tensors.h"
#include "load/lora_factors.h"
#include "recipes/adapter.h"
#include "recipes/run_log.h"
#include "text/chat_template.h"

namespace lockstep::commands {

namespace {

namespace stdfs = std::filesystem;

using checkpoint::GgufType;

// The place of the result, which no other export writes meanwhile. Nothing of it stays where the command fails.
class Destination {
 public:
  Destination(const std::string& path, const recipes::Control& control) : path_(clean(path)) {
    const fs::Path parent = path_.has_parent_path() ? path_.parent_path() : fs::Path(".");
    fs::require_writable_directory(parent);
    lock_file_ = parent / fmt::format(".{}.lock", path_.filename().string());
    lock_.emplace(lock_file_, "--output", "another --output, or wait for the command that writes it");
    if (!lock_->missing().empty())
      *control.info << fmt::format("note    {} cannot be locked ({}): see that nobody else writes it\n", path_.string(),
                                   lock_->missing());
    fs::sweep_temporaries(parent, [name = path_.filename().string()](const std::string& of) { return of == name; });
  }
  ~Destination() {
    std::error_code ignored;  // an empty file that stays does no harm
    stdfs::remove(lock_file_, ignored);
  }
  Destination(const Destination&) = delete;
  Destination& operator=(const Destination&) = delete;

  const fs::Path& path() const { return path_; }

 private:
  static fs::Path clean(const fs::Path& path) { return path.has_filename() ? path : path.parent_path(); }

  fs::Path path_, lock_file_;
  std::optional<fs::FileLock> lock_;
};

std::optional<GgufType> gguf_type(ExportType type) {
  switch (type) {
    case ExportType::automatic: return std::nullopt;
    case ExportType::f32: return GgufType::f32;
    case ExportType::f16: return GgufType::f16;
    case ExportType::bf16: return GgufType::bf16;
    case ExportType::q8_0: return GgufType::q8_0;
  }
  return std::nullopt;
}

std::optional<DType> peft_type(ExportType type) {
  switch (type) {
    case ExportType::f32: return DType::f32;
    case ExportType::f16: return DType::f16;
    case ExportType::bf16: return DType::bf16;
    default: return std::nullopt;
  }
}

void check_interrupt(const recipes::Control& control) {
  if (control.interrupted()) throw Cancelled({.what = "interrupted: nothing was written"});
}

// A base whose weights are read, but not packed for computing.
struct OpenBase {
  OpenBase(const recipes::BaseOptions& options, Stream& stream)
      : base(recipes::read_base(options)), directory(base.path), where((base.path / "config.json").string()) {
    directory.open_weights();
    base.stream = &stream;
  }

  // Hashes the weights, which takes as long as reading them.
  void identify(Stream& stream) {
    base.weights_fingerprint = checkpoint::weights_fingerprint(directory.tensors(), stream);
    base.fingerprint = checkpoint::base_fingerprint(base.weights_fingerprint, model::canonical_text(base.config));
  }

  load::Base base;
  checkpoint::HfDirectory directory;
  std::string where;
};

// Throws unless it belongs to the base, by all that is known of both.
void check_against_base(const checkpoint::PeftDirectory& adapter, OpenBase& open, Stream& stream,
                        const recipes::Control& control) {
  if (adapter.metadata()) open.identify(stream);
  recipes::print_notes(load::check_adapter(adapter, open.base).notes, control);
  load::check_base_copies(lora::base_copies(adapter.config(), adapter.read_weights().tensors()),
                          load::base_rows(open.directory), adapter.weights_file().string());
}

// What most of the model's bytes are.
GgufType stored_type(const NamedTensors& tensors) {
  std::map<DType, int64_t> elements;
  for (const NamedTensor& named : tensors) elements[named.tensor.dtype] += named.tensor.elements();
  const auto most = std::ranges::max_element(elements, {}, [](const auto& item) { return item.second; });
  if (most == elements.end() || most->first == DType::f32) return GgufType::f32;
  return most->first == DType::f16 ? GgufType::f16 : GgufType::bf16;
}

std::vector<std::string> add_tokenizer(checkpoint::GgufMetadata& metadata, const load::Base& base) {
  checkpoint::GgufTokenizerFacts facts{.vocab_size = base.config.vocab_size, .end_ids = base.eos};
  const OrderedJson special_tokens = text::ChatTemplate::special_tokens(base.path.string());
  for (const auto& [name, value] : special_tokens.items())
    if (value.is_string()) facts.special_tokens[name] = value.get<std::string>();
  if (const auto chat = text::ChatTemplate::load(base.path.string())) facts.chat_template = chat->source();
  return checkpoint::add_gguf_tokenizer(metadata, base.path / "tokenizer.json", facts);
}

void write(const Destination& destination, const GgufContent& content, Stream& stream,
           const recipes::Control& control) {
  recipes::print_notes(content.notes, control);
  int64_t shown = -1;
  checkpoint::write_gguf(destination.path(), content.metadata, content.tensors, stream, [&](double done) {
    check_interrupt(control);
    const auto percent = static_cast<int64_t>(100 * done);
    if (control.terminal && std::exchange(shown, percent) != percent)
      *control.info << fmt::format("\rwriting {} {:3} %", destination.path().string(), percent) << std::flush;
  });
  if (control.terminal) *control.info << "\r";
}

// The type of most matrices, for the closing line.
GgufType export_gguf(const ExportOptions& options, const Destination& destination, const recipes::Control& control) {
  StreamOptions threads = options.base.stream;
  threads.device = Device::cpu;
  Stream stream(threads);
  OpenBase open(options.base, stream);
  check_llama_cpp_can(open.base.config, open.where);
  std::optional<load::AdapterFactors> adapter;
  if (!options.adapter_path.empty()) {
    const checkpoint::PeftDirectory directory(load::require_adapter_directory(options.adapter_path));
    check_against_base(directory, open, stream, control);
    adapter.emplace(directory);
    load::require_finite(*adapter);
  }
  check_interrupt(control);
  if (options.format == ExportFormat::gguf_lora) {
    const GgufType type = gguf_type(options.type).value_or(GgufType::f32);
    write(destination, gguf_adapter(open.base.config, *adapter, type), stream, control);
    return type;
  }
  const NamedTensors& tensors = open.directory.tensors();
  const GgufType type = gguf_type(options.type).value_or(stored_type(tensors));
  GgufContent content = gguf_model(open.base.config, tensors, adapter ? &*adapter : nullptr, type);
  content.metadata.add_string("general.name", stdfs::absolute(open.base.path).lexically_normal().filename().string());
  const std::vector<std::string> notes = add_tokenizer(content.metadata, open.base);
  content.notes.insert(content.notes.end(), notes.begin(), notes.end());
  write(destination, content, stream, control);
  return type;
}

// A copy of another type; `memory` keeps it. FormatError: a value does not fit it, or is not finite.
NamedTensor converted(const NamedTensor& named, DType type, std::vector<Buffer>& memory) {
  const ConstTensor& from = named.tensor;
  const Buffer& buffer =
      memory.emplace_back(static_cast<size_t>(from.elements() * dtype_bytes(type)), Buffer::Fill::none);
  const auto* bits = static_cast<const uint16_t*>(from.data);
  for (int64_t i = 0; i < from.elements(); ++i) {
    const float value = from.dtype == DType::f32    ? static_cast<const float*>(from.data)[i]
                        : from.dtype == DType::bf16 ? to_f32(BFloat16{bits[i]})
                                                    : to_f32(Float16{bits[i]});
    float stored = value;
    if (type == DType::f32)
      static_cast<float*>(buffer.data())[i] = value;
    else if (type == DType::bf16)
      stored = to_f32(static_cast<BFloat16*>(buffer.data())[i] = to_bf16(value));
    else
      stored = to_f32(static_cast<Float16*>(buffer.data())[i] = to_f16(value));
    if (!std::isfinite(stored))
      throw FormatError({.what = std::isfinite(value) ? fmt::format("a value does not fit {}", dtype_name(type))
                                                      : "a value is not finite",
                         .where = named.name,
                         .got = fmt::format("{:g}", value),
                         .attempt = "bf16 or f32"});
  }
  NamedTensor copy = named;
  copy.tensor = from.rank == 1 ? ConstTensor(buffer.data(), type, {from[0]})
                               : ConstTensor(buffer.data(), type, {from[0], from[1]});
  return copy;
}

// adapter_config.json as it is, of another base if one is named.
std::string config_text(const checkpoint::PeftDirectory& adapter, const std::string& base_name) {
  const std::string file = (adapter.path() / checkpoint::kAdapterConfigFile).string();
  const std::string text = fs::read_file(file);
  if (base_name.empty()) return text;
  OrderedJson json = parse_ordered_json(text, file);
  json["base_model_name_or_path"] = base_name;
  return json_text(json, 2);
}

DType export_peft(const ExportOptions& options, const recipes::Control& control) {
  const checkpoint::PeftDirectory adapter(load::require_adapter_directory(options.adapter_path));
  const OutputDirectory output(
      options.output,
      {.overwrite = options.overwrite, .marker = checkpoint::kAdapterConfigFile, .inputs = {adapter.path()}}, control);
  if (!options.base.hf_checkpoint.empty()) {
    Stream stream(options.base.stream);
    OpenBase open(options.base, stream);
    check_against_base(adapter, open, stream, control);
  }
  load::own_layout(adapter);  // the factors belong together, as far as the adapter itself tells
  const checkpoint::AdapterWeights weights = adapter.read_weights();
  std::vector<Buffer> memory;
  NamedTensors tensors;
  for (const NamedTensor& named : weights.tensors())
    tensors.push_back(converted(named, peft_type(options.type).value_or(named.tensor.dtype), memory));
  check_interrupt(control);
  output.write([&](const fs::Path& fresh) {
    const checkpoint::NewFiles files(fresh);
    files.write(checkpoint::kAdapterConfigFile, config_text(adapter, options.base.hf_checkpoint));
    files.write_safetensors(checkpoint::kAdapterWeightsFile, tensors, {{"format", "pt"}});
  });
  return tensors.empty() ? DType::f32 : tensors.front().tensor.dtype;
}

// A GGUF file is written anew; any other is somebody's, perhaps this export's own input.
void require_replaceable(const std::string& output) {
  if (!fs::exists(output)) return;
  if (!fs::is_file(output))
    throw ConfigError({.what = "--output is not a regular file", .where = output, .wanted = "a file"});
  char magic[4] = {};
  const bool is_gguf = std::ifstream(output, std::ios::binary).read(magic, sizeof magic) &&
                       std::string_view(magic, sizeof magic) == "GGUF";
  if (!is_gguf && stdfs::file_size(output) > 0)
    throw ConfigError({.what = "the output file holds something else, which is not overwritten",
                       .where = output,
                       .got = "no GGUF file",
                       .attempt = "another file, or remove this one"});
}

uintmax_t bytes_at(const fs::Path& path) {
  if (!fs::is_directory(path)) return stdfs::file_size(path);
  uintmax_t bytes = 0;
  for (const stdfs::directory_entry& entry : stdfs::directory_iterator(path)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

void run_export(const ExportOptions& options, const recipes::Control& control) {
  const Stopwatch watch;
  const auto done = [&](const char* type) {
    *control.out << fmt::format("{}  {}, {:.1f} MB in {:.1f} s\n", options.output, type,
                                static_cast<double>(bytes_at(options.output)) * 1e-6, watch.ms() / 1000);
  };
  if (options.format == ExportFormat::peft) return done(dtype_name(export_peft(options, control)));
  require_replaceable(options.output);
  const Destination destination(options.output, control);
  done(checkpoint::gguf_type_name(export_gguf(options, destination, control)));
}

}  // namespace lockstep::commands
