// A base and an adapter become one model, piece by piece: every piece of a tensor is read, changed, rounded and written
// to its place by one thread, so that memory holds a few pieces of each thread and the adapter, and reading, computing
// and writing overlap.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf_directory.h"
#include "checkpoint/hf_output.h"
#include "core/stream.h"
#include "load/lora_factors.h"

namespace lockstep::load {

struct MergeRules {
  std::optional<DType> dtype;  // of all floats of the output; none: as the base has them
  int64_t max_shard_bytes = int64_t{5'000'000'000};
};

class Merge {
 public:
  // Called on the thread that writes: with the share that is done; with each file that is whole; and to ask whether to
  // stop.
  struct Watch {
    std::function<void(double)> progress = {};
    std::function<void(const std::string&)> written = {};
    std::function<bool()> stopped = {};
  };

  // All outlive it; the base's weights are open. FormatError, ShapeError: a module of the adapter that the base lacks
  // or has in another shape. DTypeError: one that is quantized.
  Merge(const MergeRules& rules, const checkpoint::HfDirectory& base, const AdapterFactors& adapter, Stream& stream);
  ~Merge();

  // Into a directory that is there and empty. Cancelled: it was stopped. ResourceError: the disk is full.
  // FormatError: a merged value does not fit its type.
  void write(const fs::Path& directory, const Watch& watch);

  size_t num_shards() const { return shards_.size(); }
  uint64_t total_bytes() const { return total_bytes_; }
  // The base's head is its embedding, and the adapter changes one of them: the output has both.
  bool untied() const { return untied_; }

 private:
  class PieceWriter;
  struct Task;
  struct Piece;

  void untie();
  void check_modules() const;
  void check_weight(const NamedTensor& weight, const ModuleFactors& module) const;
  void plan();
  std::vector<Task> tasks_of(const checkpoint::OutputShard& shard) const;
  static std::vector<Piece> pieces_of(const std::vector<Task>& tasks);
  void write_shard(const fs::Path& directory, const checkpoint::OutputShard& shard, const Watch& watch);

  const MergeRules rules_;
  const checkpoint::HfDirectory& base_;
  NamedTensors tensors_;  // of the base, and its head if it is tied no longer; sorted by name
  bool untied_ = false;
  const AdapterFactors& adapter_;
  Stream& stream_;
  std::vector<std::unique_ptr<PieceWriter>> writers_;
  std::vector<checkpoint::OutputShard> shards_;
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_ = 0;
};

}  // namespace lockstep::load
