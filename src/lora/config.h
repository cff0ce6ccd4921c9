// lora: low-rank adapters of a frozen model. y += scale * B (A x),  scale = alpha / r or alpha / sqrt(r).
// Source: arXiv 2106.09685; rsLoRA arXiv 2312.03732.
//
//   includes    core, kernels
//   memory      an AdapterVersion owns one flat immutable buffer; everybody else holds shared_ptr<const AdapterVersion>
//   threads     versions are immutable; ops run on the caller's Stream
//
// This header: what a user or a PEFT directory says about an adapter; the only part of lora/ that checkpoint/ sees.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::lora {

// How the projections that read the same input share factors.
//   fused      `lora`: q, k, v share one A, gate and up share one A (Megatron linear_qkv, linear_fc1)
//   canonical  `canonical_lora`: one pair per projection (PEFT, Megatron linear_q ...)
enum class LoraType { fused, canonical };
const char* lora_type_name(LoraType type);          // "lora", "canonical_lora"
LoraType parse_lora_type(const std::string& name);  // ConfigError

// Which biases of the base an adapter has trained copies of: none, those of its targets, or all.
enum class TrainedBiases { none, lora_only, all };
const char* trained_biases_name(TrainedBiases biases);  // as the enumerators
std::optional<TrainedBiases> trained_biases_of(const std::string& name);

// What new factors begin as (lora/init.h).
//   standard    A as PyTorch makes a linear layer, B = 0
//   gaussian    A normal with deviation 1 / rank, B = 0
//   random      A and B as PyTorch makes linear layers: an adapter that matters before it is trained
//   orthogonal  A and B in spaces orthogonal to one another
//   pissa       the `rank` largest singular values of W, the base less them
//   olora       the first `rank` columns of W's QR decomposition, the base less them
enum class InitMethod { standard, gaussian, random, orthogonal, pissa, olora };
struct LoraInit {
  InitMethod method = InitMethod::standard;
  // pissa: subspace iterations of a randomized SVD; nothing: as the size of W suggests.
  std::optional<int64_t> iterations = {};

  bool changes_base() const { return method == InitMethod::pissa || method == InitMethod::olora; }
  bool operator==(const LoraInit&) const = default;
};
// PEFT's spellings (init_lora_weights): "true", "false" (random), "gaussian", "orthogonal", "pissa", "pissa_niter_4",
// "olora".
inline constexpr const char* kLoraInitNames =
    "true, false, gaussian, orthogonal, pissa, pissa_niter_N (N from 0 to 1000) or olora";
std::string lora_init_name(const LoraInit& init);
std::optional<LoraInit> lora_init_of(const std::string& name);

// Above any model's width: what lies beyond is a typing error, not an adapter.
inline constexpr int64_t kMaxRank = int64_t{1} << 16;

struct LoraConfig {
  int64_t rank = 0;
  double alpha = 16;
  double dropout = 0;
  bool use_rslora = false;
  LoraType type = LoraType::fused;
  // Leaf names (HF or Megatron), or one regular expression over full module names (PEFT string form).
  std::vector<std::string> target_modules;
  std::optional<std::string> target_regex;
  // Names as in target_modules, or one regular expression over full module names.
  std::vector<std::string> exclude_modules;
  std::optional<std::string> exclude_regex;
  // Where target_modules names no full module name: in these layers alone. layers_pattern: regular expressions of what
  // stands before the layer's number in a module's name; none: anything.
  std::optional<std::vector<int64_t>> layers_to_transform;
  std::vector<std::string> layers_pattern;
  // In order of the file; first key that matches wins (PEFT: (.*\.)?KEY$ over the module name).
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool use_dora = false;  // a trained magnitude for each output of a target: arXiv 2402.09353
  TrainedBiases bias = TrainedBiases::none;
  // Leaf or full names of the embedding and the head, whose weights are trained as copies of the adapter's own.
  std::vector<std::string> modules_to_save;
  // Of a critic: the width of the model whose final hidden state a value head reads, v = weight . x + bias. 0: no head.
  // In files it is PEFT's TOKEN_CLS with one label, whose head is called "score".
  int64_t value_width = 0;
  // The model is W + scale (B A - B0 A0), with the first values A0 and B0 kept (PiSSA, OLoRA): the base stays as it is,
  // and saved files hold a plain adapter of twice the rank.
  bool subtracts_initial = false;
  LoraInit init;
  bool freezes_b = false;  // PEFT's MiCA, which trains A alone: such an adapter is used here, and not trained
  std::string file = {};   // adapter_config.json it was read from, for messages; empty: the command line
};

// --target-modules / --exclude-modules: "all-linear" (also "all", "all_linear") or a comma list, spaces allowed.
std::vector<std::string> split_module_list(const std::string& text);

}  // namespace lockstep::lora
