// Adapters and models for other programs: llama.cpp, and whatever reads PEFT directories.
#pragma once

#include <string>

#include "recipes/control.h"
#include "recipes/options.h"

namespace lockstep::commands {

// What is written.
//   gguf_lora  the adapter, for llama.cpp's model of the same base
//   gguf       the model for llama.cpp, with the adapter merged into it if one is given
//   peft       the adapter, as plain PEFT files
enum class ExportFormat { gguf_lora, gguf, peft };
// How weights are written. automatic: of a model as most of it is stored, of a GGUF adapter f32, for PEFT as they are.
enum class ExportType { automatic, f32, f16, bf16, q8_0 };

struct ExportOptions {
  recipes::BaseOptions base;  // may be empty for peft
  std::string adapter_path;   // an adapter, an iteration or a save directory; may be empty for gguf
  std::string output;         // a file; for peft a directory
  ExportFormat format = ExportFormat::gguf;
  ExportType type = ExportType::automatic;
  bool overwrite = false;  // peft: whether an adapter directory at the output is replaced, with all that is in it
};

// Tells what was written. The file or directory appears whole or not at all: on an interrupt nothing is left of it, and
// Cancelled is thrown. ResourceError: it cannot be written, or another export writes it. ConfigError: there is no
// adapter, or something lies at the output that an export must not replace. FormatError: the other program would
// compute something else, or a value does not fit the type.
void run_export(const ExportOptions& options, const recipes::Control& control);

}  // namespace lockstep::commands
