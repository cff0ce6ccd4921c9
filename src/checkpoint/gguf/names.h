// What llama.cpp calls the architectures, modules and tensors of a Hugging Face model: tables, and nothing that knows
// what a layer computes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

struct GgufArchitecture {
  const char* model_type;  // of config.json
  const char* name;        // general.architecture, and what the keys begin with
  // llama.cpp rotates neighbouring entries of a head of this architecture where transformers rotates entry i and
  // i + head_dim / 2: rows of q and k are stored in another order (gguf_source_row).
  bool interleaved_rotary;
  bool output_bias;  // of attention's o_proj; else llama.cpp would not read it
};

// FormatError naming `where`: llama.cpp's name of it is not known here.
const GgufArchitecture& gguf_architecture(std::string_view model_type, const std::string& where);

struct GgufModule {
  std::string name;     // "blk.3.attn_q"
  bool rotary = false;  // its rows are rotated: see interleaved_rotary
};

// Of a module by its full name ("model.layers.3.self_attn.q_proj"). FormatError: it has none.
GgufModule gguf_module(const std::string& module);
// The same of a tensor ("model.layers.3.self_attn.q_proj.weight").
GgufModule gguf_tensor(const std::string& tensor);

// The row of a matrix with rows of heads, as transformers has it, that is row `row` where neighbours are rotated: entry
// 2 i of a head is its entry i, entry 2 i + 1 is its entry i + head_dim / 2.
int64_t gguf_source_row(int64_t row, int64_t head_dim);

}  // namespace lockstep::checkpoint
