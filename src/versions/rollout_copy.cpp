#include "versions/rollout_copy.h"

#include "checkpoint/peft_directory.h"
#include "core/error.h"

namespace lockstep::versions {

namespace {

// Lockstep reads whatever an adapter's file says; other servers read factors alone.
void check_plain(const lora::AdapterVersion& adapter, const CopyOptions& options) {
  const bool has_heads = adapter.extras && !adapter.extras->tensors.empty();
  if (!has_heads && (options.exact || adapter.layout->own.empty())) return;
  throw ConfigError(
      {.what = "this adapter has more than low-rank factors, which servers do not load",
       .where = lora::policy_text(adapter.policy),
       .got = "a magnitude, a bias, or a weight of its own",
       .attempt = "RolloutEngineOptions::delivery as weights, the local engine, or an adapter without them"});
}

// [rows, cols] in the first rows and columns of a zeroed [to_rows, to_cols], times `scale`.
Buffer padded(const ConstTensor& from, int64_t to_rows, int64_t to_cols, float scale) {
  Buffer buffer(static_cast<size_t>(to_rows * to_cols) * sizeof(float));
  for (int64_t row = 0; row < from[0]; ++row)
    for (int64_t col = 0; col < from[1]; ++col) buffer.f32()[row * to_cols + col] = scale * from.row(row)[col];
  return buffer;
}

}  // namespace

void write_rollout_copy(const fs::Path& directory, const lora::AdapterVersion& adapter, const CopyOptions& options,
                        Stream& stream) {
  check_plain(adapter, options);
  const lora::AdapterLayout& layout = *adapter.layout;
  const Buffer weights = lora::host_weights(*adapter.weights, layout, stream);
  lora::ExportedTensors exported = lora::export_tensors(layout, weights.f32());
  lora::LoraConfig config = lora::saved_config(layout);
  std::vector<std::string> targets = config.target_modules;
  if (!options.exact) {
    const int64_t rank = lora::largest_rank(layout) * (layout.config.subtracts_initial ? 2 : 1);
    config = {.rank = rank, .alpha = static_cast<double>(rank), .dropout = layout.config.dropout};
    targets = layout.target_leaves;
    // In the order of export_tensors: A and B of each module of each pair.
    size_t at = 0;
    for (const lora::Pair& pair : layout.pairs)
      for (size_t module = 0; module < pair.modules.size(); ++module)
        for (const bool is_b : {false, true}) {
          NamedTensor& named = exported.tensors[at];
          const int64_t rows = is_b ? named.tensor[0] : rank, cols = is_b ? rank : named.tensor[1];
          Buffer copy = padded(named.tensor, rows, cols, is_b ? pair.scale : 1.0F);
          named.tensor = ConstTensor(copy.data(), DType::f32, {rows, cols});
          exported.memory[at++] = std::move(copy);
        }
  }
  checkpoint::write_peft_directory(directory, config, targets, options.base_name, exported.tensors);
}

}  // namespace lockstep::versions
