// The shape of an adapter over one model (AdapterLayout), its tensors at one moment (AdapterVersion), and its PEFT
// names.
//
// All tensors of an adapter lie in one flat f32 buffer, as the kernels read them: A transposed to [in, r] and B to
// [r, out]; then what else it trains (OwnTensors); last what is never trained (A0 and B0). The optimizer updates this
// buffer, and publishing hands over the very buffer that it wrote. On a GPU the same array, rounded to bf16, follows in
// the buffer: the working copy that kernels read. There A is [r, in], so that it is read by rows as every other weight;
// the embedding's stays as it is, because a token picks one of its columns.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/named_tensor.h"
#include "core/stream.h"
#include "kernels/packed_weight.h"
#include "lora/config.h"
#include "lora/policy.h"

namespace lockstep::lora {

// The embedding reads tokens: `in` is the size of the vocabulary, and its weight is [in, out]. The head is a linear
// module that no list of "all-linear" means.
enum class ModuleKind { linear, embedding, head };

// One module of the model as Hugging Face names it, and where its rows lie in the matrix that is multiplied as one.
// Modules that read the same input lie at one site: a site is an index of such a matrix in the model. The embedding and
// the head have the first two, the others follow in the order in which forward comes to them.
struct Module {
  std::string name;   // "model.layers.0.self_attn.q_proj"
  std::string leaf;   // "q_proj"
  int64_t layer = 0;  // -1: of none
  int64_t site = 0;
  int64_t in = 0, out = 0;
  int64_t out_begin = 0;  // first row in the site's matrix
  ModuleKind kind = ModuleKind::linear;
  bool has_bias = false;
};

inline constexpr int64_t kAbsent = -1;

struct Pair {
  int64_t rank = 0, in = 0, out = 0;
  int64_t out_begin = 0;        // first column of the site's output that it adds to
  float scale = 0;              // alpha / r or alpha / sqrt(r)
  int64_t a_offset = 0;         // floats into the flat buffer: A^T [in, rank]
  int64_t b_offset = 0;         // B^T [rank, out]
  std::vector<Module> modules;  // the modules it covers, in order of rows; one when canonical
  // Of A0 and B0 (LoraConfig::subtracts_initial), laid out as A and B; or kAbsent.
  int64_t a0_offset = kAbsent, b0_offset = kAbsent;

  const Module& module() const { return modules.front(); }
  bool of_embedding() const { return module().kind == ModuleKind::embedding; }
};

// What an adapter trains of one module beside its factors: offsets into the flat buffer, or kAbsent.
struct OwnTensors {
  Module module;
  int64_t magnitude = kAbsent;  // m [out]: y = m / |W + scale B A| (W x + scale B A x), the norm of each row
  int64_t bias = kAbsent;       // [out], in place of the base's
  int64_t weight = kAbsent;     // row-major as in the base's file, in place of the base's

  int64_t weight_rows() const { return module.kind == ModuleKind::embedding ? module.in : module.out; }
  int64_t weight_cols() const { return module.kind == ModuleKind::embedding ? module.out : module.in; }
};

// A linear head of one output over the model's final hidden state: offsets into the flat buffer.
struct ValueHead {
  int64_t width = 0;
  int64_t weight = kAbsent;  // [width]
  int64_t bias = kAbsent;    // [1]
};

struct AdapterLayout {
  LoraConfig config;                         // as it came true, so that it can be saved: its lists name what is covered
  std::vector<Pair> pairs;                   // ordered by site, column
  std::vector<std::vector<int>> site_pairs;  // [sites of the model] -> indices into pairs
  std::vector<OwnTensors> own;               // of the modules that have some, ordered by site, row
  std::optional<ValueHead> value_head;       // of a critic (LoraConfig::value_width)
  std::vector<std::string> target_leaves;    // HF leaf names covered, sorted (fused siblings included)
  int64_t num_floats = 0;                    // of the flat buffer (tensors start at multiples of 16; gaps stay 0)
  int64_t num_trained = 0;                   // floats at its begin that are trained: gradients and moments have these
  int64_t num_parameters = 0;                // trainable parameters
  int64_t first_layer = 0;                   // lowest layer with a trained tensor; gradients stop there
  bool trains_embedding = false;             // or below it, at the embedding

  int64_t num_sites() const { return static_cast<int64_t>(site_pairs.size()); }
  const std::vector<int>& pairs_at(int64_t site) const { return site_pairs[static_cast<size_t>(site)]; }
};

// Resolves a configuration against the model's modules. Targets and exclusions are HF leaves (q_proj ...), Megatron
// names (linear_qkv, linear_proj, linear_fc1, linear_fc2, linear_q ... linear_fc1_gate, linear_fc1_up), full module
// names, or suffixes of them; "all-linear" / "all" / "all_linear" is every module given. With LoraType::fused a named
// sibling brings the others, even an excluded one (as in vime: exclude all of a site or none). The embedding and the
// head are targets where they are named themselves. Refuses: rank outside 1 to kMaxRank, alpha <= 0, no target, a name
// that matches nothing (with the names that exist), nothing left after exclusions, modules to save other than the
// embedding and the head, magnitudes for the embedding; ConfigError naming the flag, or FormatError naming config.file
// and its key.
std::shared_ptr<const AdapterLayout> resolve_layout(const LoraConfig& config, const std::vector<Module>& modules);

int64_t largest_rank(const AdapterLayout& layout);
// What the layout has at this site beside pairs, ordered by row.
std::span<const OwnTensors> own_tensors_at(const AdapterLayout& layout, int64_t site);
bool saves_weights(const AdapterLayout& layout);  // whether some module has a weight of its own
// Whether it has factors of the blocks' linear layers and nothing else.
bool is_plain(const AdapterLayout& layout);
// ConfigError, FormatError as above for ranks that the device's kernels do not take (kernels::max_lora_rank).
void check_ranks(const AdapterLayout& layout, Device device);

// Bytes of an adapter's weights on a device: num_floats f32, on a GPU followed by num_floats bf16.
size_t weight_bytes(const AdapterLayout& layout, Device device);
Tensor master_weights(const Buffer& weights, const AdapterLayout& layout);   // [num_floats] f32
Tensor working_weights(const Buffer& weights, const AdapterLayout& layout);  // [num_floats] bf16; empty on the CPU
// Makes the matrices A of a GPU's working copy from the master weights; the rest of it has been rounded already.
void transpose_working(const Buffer& weights, const AdapterLayout& layout, Stream& stream);
// Copies what is not trained, in both arrays, into the next weights; A0 is still to be transposed.
void copy_untrained(const Buffer& to, const Buffer& from, const AdapterLayout& layout, Stream& stream);
// num_floats f32 of host memory as weights on the stream's device, and back; complete on return, for any stream.
Buffer place_weights(Buffer host, const AdapterLayout& layout, Stream& stream);
Buffer host_weights(const Buffer& weights, const AdapterLayout& layout, Stream& stream);

// What a version has beside the factors of its layout, as kernels read it: made of its own tensors and the base
// (model::adapter_extras), on the version's device.
struct AdapterExtras {
  // At one site, for the rows of this version (kernels::LoraSegment); empty: as in the base.
  struct Site {
    int64_t site = 0;
    ConstTensor factor = {}, inverse_norm = {}, inverse_magnitude = {}, bias = {};
    std::shared_ptr<const kernels::PackedWeight> weight = {};
    ConstTensor table = {};  // of the embedding: its weight (kernels::EmbeddingSegment)
  };
  std::vector<Site> sites;             // at most one entry a site
  NamedTensors tensors;                // of heads beside the model's own
  std::vector<Buffer> memory;          // of all of these
  const Site* at(int64_t site) const;  // nullptr: nothing
};

// An immutable snapshot. Everything that reads an adapter reads one of these.
struct AdapterVersion {
  PolicyId policy = {};   // whose it is; without a name as long as it is not published
  BaseVersion base = {};  // that it lies on
  std::shared_ptr<const AdapterLayout> layout;
  std::shared_ptr<const Buffer> weights;  // weight_bytes
  std::shared_ptr<const AdapterExtras> extras = {};

  // As kernels read them (kernels::LoraPair; the embedding's A: [in, rank]).
  ConstTensor a(const Pair& pair) const { return factor_a(pair, pair.a_offset); }
  ConstTensor b(const Pair& pair) const { return factor_b(pair, pair.b_offset); }
  // A0 and B0, where the pair has them.
  ConstTensor a0(const Pair& pair) const { return factor_a(pair, pair.a0_offset); }
  ConstTensor b0(const Pair& pair) const { return factor_b(pair, pair.b0_offset); }
  // Row-major as in the base's file: f32, on a GPU bf16.
  ConstTensor own_weight(const OwnTensors& own) const {
    return working(own.weight, own.weight_rows(), own.weight_cols());
  }

 private:
  ConstTensor factor_a(const Pair& pair, int64_t offset) const;
  ConstTensor factor_b(const Pair& pair, int64_t offset) const;
  ConstTensor working(int64_t offset, int64_t rows, int64_t cols) const;
};

// Row-major copies under PEFT names ("base_model.model.<module>.lora_A.weight" [r, in], "....lora_B.weight" [out, r],
// "....lora_embedding_A", "....lora_magnitude_vector", "....base_layer.bias", "....weight" ...); a shared A is written
// once per module. Of a layout that subtracts its first values the files hold [A; A0] and [B, -B0], which is a plain
// adapter: saved_config. `flat` (host memory) has num_floats.
struct ExportedTensors {
  std::vector<Buffer> memory;
  NamedTensors tensors;
};
ExportedTensors export_tensors(const AdapterLayout& layout, const float* flat);
// The configuration that goes with these tensors: with A0 and B0, of twice the rank and alphas that keep the scales.
LoraConfig saved_config(const AdapterLayout& layout);

// A weight of the base that PEFT adds to the file of an adapter, the embedding's or the head's. It is no tensor of the
// adapter; whoever reads the file compares it with the base (load/base_copies.h).
struct BaseCopy {
  std::string module;  // "lm_head"
  NamedTensor tensor;
};
std::vector<BaseCopy> base_copies(const LoraConfig& config, const NamedTensors& tensors);

// FormatError, ShapeError naming the tensor unless `tensors` are those of the layout, of f32, bf16 or f16; their values
// and base_copies are not looked at.
void check_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where);

// The inverse of export_tensors. Accepts f32, bf16, f16. FormatError / ShapeError naming the tensor: missing, surplus,
// mis-shaped, and (fused) copies of a shared A that differ. Host memory.
Buffer import_tensors(const AdapterLayout& layout, const NamedTensors& tensors, const std::string& where);

// The modules that these tensors belong to, by names and shapes: for looking at an adapter without its base. A tensor
// with an unexpected shape gives sizes that import_tensors refuses.
std::vector<Module> modules_of(const NamedTensors& tensors);

}  // namespace lockstep::lora
