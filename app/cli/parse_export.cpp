// lockstep export.
#include "cli/adapter_flags.h"
#include "cli/parse.h"
#include "cli/parse_shared.h"
#include "core/error.h"

namespace lockstep::cli {

namespace {

using commands::ExportFormat;
using commands::ExportType;

ExportType export_type(const std::string& name) {
  if (name == "f32") return ExportType::f32;
  if (name == "f16") return ExportType::f16;
  if (name == "bf16") return ExportType::bf16;
  if (name == "q8_0") return ExportType::q8_0;
  return ExportType::automatic;
}

FlagSet export_flags(commands::ExportOptions& o) {
  const auto set_format = [&o](const std::string& name) {
    o.format = name == "gguf" ? ExportFormat::gguf : name == "peft" ? ExportFormat::peft : ExportFormat::gguf_lora;
  };
  FlagSet flags;
  flags.add("Required", {{"--format", "FORMAT", choice("gguf-lora|gguf|peft", "", set_format),
                          "gguf-lora (an adapter for llama.cpp) | gguf (a model for llama.cpp, the adapter merged into "
                          "it) | peft (an adapter as plain PEFT files)"},
                         {"--output", "PATH", text(o.output), "file to write; for peft a directory"}});
  flags.add("Options",
            {hf_checkpoint_flag(o.base),
             adapter_path_flag(o.adapter_path, "adapter, iteration or --save directory; gguf without it: the base"),
             {"--dtype", "TYPE",
              choice("auto|f32|f16|bf16|q8_0", "auto", [&o](const std::string& name) { o.type = export_type(name); }),
              "f32 | f16 | bf16 | q8_0 (not peft) | auto (gguf: as the model is stored; gguf-lora: f32; peft: as it "
              "is)"},
             {"--overwrite", "", toggle(o.overwrite),
              "peft: replace the adapter directory at --output, with all that is in it (a gguf file is replaced)"},
             {"--threads", "N", number(o.base.stream.threads, 0, max_threads()),
              "threads (0: all cores); never changes a bit"}});
  return flags;
}

constexpr const char* kExample =
    "lockstep export --format gguf-lora --hf-checkpoint DIR --lora-adapter-path run --output adapter.gguf";

}  // namespace

commands::ExportOptions parse_export(const Values& args) {
  commands::ExportOptions options;
  const FlagSet flags = export_flags(options);
  const Classified given = parse_flags(args, flags, {"--format", "--output"});
  if (options.format != ExportFormat::peft) require(given, {"--hf-checkpoint"});
  if (options.format != ExportFormat::gguf) require(given, {"--lora-adapter-path"});
  if (options.format == ExportFormat::peft && options.type == ExportType::q8_0)
    throw ConfigError(
        {.what = "PEFT reads no quantized factors", .where = "--dtype", .got = "q8_0", .wanted = "f32, f16 or bf16"});
  if (options.overwrite && options.format != ExportFormat::peft)
    throw ConfigError({.what = "--overwrite is of --format peft", .where = "--overwrite", .attempt = "without it"});
  return options;
}

std::string export_help() {
  commands::ExportOptions options;
  return export_flags(options).help(
      "export", "Writes an adapter or a model for other programs.",
      std::string("Examples:\n  ") + kExample +
          "\n  lockstep export --format gguf --dtype q8_0 --hf-checkpoint DIR --lora-adapter-path run --output "
          "model.gguf\n  lockstep export --format peft --dtype bf16 --lora-adapter-path run/iter_0000100 --output "
          "adapter");
}

}  // namespace lockstep::cli
