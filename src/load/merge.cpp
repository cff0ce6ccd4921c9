#include "load/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/new_file.h"
#include "kernels/add_rounded.h"
#include "kernels/matmul.h"
#include "load/base_tensors.h"

namespace lockstep::load {

namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

int64_t rows_of(const ConstTensor& tensor) {
  return tensor.rank == 1 ? 1 : tensor[0];
}

template <class Bits>
bool all_finite(const void* values, int64_t count, Bits exponent) {
  const auto* const bits = static_cast<const Bits*>(values);
  return std::all_of(bits, bits + count, [&](Bits value) { return (value & exponent) != exponent; });
}
bool all_finite(const void* values, int64_t count, DType dtype) {
  if (dtype == DType::f32) return all_finite(values, count, uint32_t{0x7f800000});
  return all_finite(values, count, dtype == DType::bf16 ? uint16_t{0x7f80} : uint16_t{0x7c00});
}

}  // namespace

// A tensor of the base, what becomes of it (nothing: it is copied or converted), and its place in the output.
struct Merge::Task {
  const NamedTensor* source = nullptr;
  const ModuleFactors* update = nullptr;
  ConstTensor replacement = {};  // f32: written in place of the source
  DType dtype = DType::f32;      // in the output
  uint64_t begin = 0;            // in the shard
};

// Some rows of a task. A tensor of one dimension is one row.
struct Merge::Piece {
  const Task* task = nullptr;
  int64_t begin = 0, end = 0;
};

std::vector<Merge::Piece> Merge::pieces_of(const std::vector<Task>& tasks) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  std::vector<Piece> pieces;
  for (const Task& task : tasks) {
    const ConstTensor& source = task.source->tensor;
    const int64_t rows = rows_of(source);
    if (source.elements() == 0) continue;
    const int64_t row_bytes = source.elements() / rows * dtype_bytes(source.dtype);
    const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += step) pieces.push_back({&task, begin, std::min(rows, begin + step)});
  }
  return pieces;
}

// What one thread works with.
class Merge::PieceWriter {
 public:
  explicit PieceWriter(CpuIsa isa) : stream_({.threads = 1, .isa = isa}) {}

  void write(const Piece& piece, const fs::NewFile& file) {
    const Task& task = *piece.task;
    const ConstTensor& source = task.source->tensor;
    const int64_t width = source.elements() / rows_of(source), count = (piece.end - piece.begin) * width;
    const auto from_bytes = static_cast<size_t>(dtype_bytes(source.dtype)),
               to_bytes = static_cast<size_t>(dtype_bytes(task.dtype));
    const size_t part_bytes = static_cast<size_t>(count) * from_bytes;
    const int64_t rows = piece.end - piece.begin;
    const void* in = static_cast<const float*>(task.replacement.data) + piece.begin * width;
    if (task.replacement.empty()) {
      void* const memory = room(in_, part_bytes);
      task.source->read(memory, static_cast<size_t>(piece.begin * width) * from_bytes, part_bytes);
      in = memory;
    }
    const ConstTensor weight(in, task.replacement.empty() ? source.dtype : DType::f32, {rows, width});
    const void* out = in;
    if (task.update != nullptr || task.dtype != weight.dtype) {
      const Tensor merged(room(out_, static_cast<size_t>(count) * to_bytes), task.dtype, {rows, width});
      if (task.update == nullptr)
        kernels::add_rounded(merged, weight, {}, 1, stream_);
      else
        add_update(merged, weight, *task.update, piece.begin);
      out = merged.data;
      if (!all_finite(out, count, task.dtype))
        throw FormatError({.what = fmt::format("a merged value does not fit {}", dtype_name(task.dtype)),
                           .where = task.source->name,
                           .attempt = "bfloat16 or float32"});
    }
    file.write({static_cast<const std::byte*>(out), static_cast<size_t>(count) * to_bytes},
               task.begin + static_cast<uint64_t>(piece.begin * width) * to_bytes);
  }

 private:
  // In blocks of rows whose update stays in the cache between its making and its use.
  void add_update(const Tensor& merged, const ConstTensor& weight, const ModuleFactors& update, int64_t first_row) {
    constexpr int64_t kBlockBytes = int64_t{256} << 10, kFewestRows = 8;
    const int64_t rows = weight[0], width = weight[1];
    const int64_t step = std::max(kFewestRows, kBlockBytes / (width * int64_t{sizeof(float)}));
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t end = std::min(rows, row + step);
      auto* const memory = static_cast<float*>(room(delta_, static_cast<size_t>((end - row) * width) * sizeof(float)));
      const Tensor delta(memory, DType::f32, {end - row, width});
      kernels::matmul(delta, update.b.rows(first_row + row, first_row + end), update.a, 1, false, stream_);
      if (update.magnitude.empty()) {
        kernels::add_rounded(merged.rows(row, end), weight.rows(row, end), delta, update.scale, stream_);
        continue;
      }
      kernels::add_rounded(delta, weight.rows(row, end), delta, update.scale, stream_);
      for (int64_t i = 0; i < end - row; ++i)
        scale_to(std::span(memory + i * width, static_cast<size_t>(width)), magnitude_of(update, first_row + row + i));
      kernels::add_rounded(merged.rows(row, end), delta, {}, 1, stream_);
    }
  }

  static void* room(Buffer& buffer, size_t bytes) {
    if (buffer.bytes() < bytes) buffer = Buffer(bytes, Buffer::Fill::none);
    return buffer.data();
  }

  Stream stream_;
  Buffer in_, out_, delta_;
};

Merge::Merge(const MergeRules& rules, const checkpoint::HfDirectory& base, const AdapterFactors& adapter,
             Stream& stream)
    : rules_(rules), base_(base), tensors_(base.tensors()), adapter_(adapter), stream_(stream) {
  untie();
  check_modules();
  for (int i = 0; i < stream.threads(); ++i) writers_.push_back(std::make_unique<PieceWriter>(stream.isa()));
  plan();
}
Merge::~Merge() = default;

void Merge::write(const fs::Path& directory, const Watch& watch) {
  done_bytes_ = 0;
  checkpoint::copy_companions(base_.path(), directory, {.stored = rules_.dtype, .untied = untied_});
  for (const checkpoint::OutputShard& shard : shards_) write_shard(directory, shard, watch);
  if (const std::optional<std::string> index = checkpoint::index_text(shards_))
    fs::write_file_atomic(directory / "model.safetensors.index.json", *index);
}

// A head that the base ties to its embedding becomes a weight of its own where one of the two is changed.
void Merge::untie() {
  if (!is_tied(base_) || !adapter_.changes_ends()) return;
  untied_ = true;
  NamedTensor head = base_tensor(tensors_, "model.embed_tokens.weight", base_.path());
  head.name = "lm_head.weight";
  const auto place = std::ranges::lower_bound(tensors_, head.name, {}, &NamedTensor::name);
  if (place == tensors_.end() || place->name != head.name) tensors_.insert(place, head);
}

// Every module must be a matrix of the base with its shape, and be used as such.
void Merge::check_modules() const {
  for (const ModuleFactors& module : adapter_.modules()) {
    if (module.changes_weight()) check_weight(base_tensor(tensors_, module.name + ".weight", base_.path()), module);
    if (module.bias.empty()) continue;
    const NamedTensor& bias = base_tensor(tensors_, module.name + ".bias", base_.path());
    if (bias.tensor.rank != 1 || bias.tensor[0] != module.bias[0])
      throw ShapeError({.what = "a bias of the base and the adapter's differ in shape",
                        .where = base_.path().string() + ": " + bias.name,
                        .got = shape_text(bias.tensor),
                        .wanted = shape_text(module.bias)});
  }
  check_base_copies(adapter_.base_copies(), base_rows(base_), adapter_.file().string());
}

void Merge::check_weight(const NamedTensor& weight, const ModuleFactors& module) const {
  const ConstTensor& tensor = weight.tensor;
  const bool same = tensor.rank == 2 && tensor[0] == module.out() && tensor[1] == module.in();
  if (same && is_float(tensor.dtype)) return;
  const Fault fault{.what = same ? "an update cannot be added to weights of this type"
                                 : "a weight of the base and the adapter's update differ in shape",
                    .where = base_.path().string() + ": " + weight.name,
                    .got = shape_text(tensor),
                    .wanted = fmt::format("f32, bf16 or f16 [{}, {}]", module.out(), module.in()),
                    .attempt = same ? "the unquantized base" : "the base that the adapter was made for"};
  if (same) throw DTypeError(fault);
  throw ShapeError(fault);
}

// File by file, as the base has them.
void Merge::plan() {
  NamedTensors order = tensors_;
  std::ranges::stable_sort(order, {}, [](const NamedTensor& t) { return t.file ? t.file->path() : fs::Path(); });
  for (NamedTensor& tensor : order)
    if (rules_.dtype && is_float(tensor.tensor.dtype)) tensor.tensor.dtype = *rules_.dtype;
  shards_ = checkpoint::plan_shards(order, static_cast<uint64_t>(rules_.max_shard_bytes));
  for (const checkpoint::OutputShard& shard : shards_) total_bytes_ += shard.layout.file_bytes;
}

std::vector<Merge::Task> Merge::tasks_of(const checkpoint::OutputShard& shard) const {
  std::vector<Task> tasks;
  for (const checkpoint::SafetensorsLayout::Place& place : shard.layout.places) {
    const NamedTensor& named = shard.tensors[place.tensor];
    constexpr std::string_view kWeight = ".weight", kBias = ".bias";
    const size_t dot = named.name.rfind('.');
    const std::string_view end = std::string_view(named.name).substr(dot == std::string::npos ? 0 : dot);
    const ModuleFactors* const module = adapter_.find(named.name.substr(0, named.name.size() - end.size()));
    Task task{.source = &*std::ranges::lower_bound(tensors_, named.name, {}, &NamedTensor::name),
              .dtype = named.tensor.dtype,
              .begin = place.begin};
    if (module != nullptr && end == kWeight && module->has_update()) task.update = module;
    if (module != nullptr && end == kWeight) task.replacement = module->weight;
    if (module != nullptr && end == kBias) task.replacement = module->bias;
    tasks.push_back(task);
  }
  return tasks;
}

void Merge::write_shard(const fs::Path& directory, const checkpoint::OutputShard& shard, const Watch& watch) {
  fs::NewFile file(directory / shard.file, shard.layout.file_bytes);
  file.write(std::as_bytes(std::span(shard.layout.header)), 0);
  const std::vector<Task> tasks = tasks_of(shard);
  const std::vector<Piece> pieces = pieces_of(tasks);
  const auto asked_to_stop = [&] { return watch.stopped && watch.stopped(); };
  std::atomic<bool> stopped = false;
  stream_.parallel(static_cast<int64_t>(pieces.size()), [&](int64_t index, int worker) {
    if (stopped) return;
    const Piece& piece = pieces[static_cast<size_t>(index)];
    writers_[static_cast<size_t>(worker)]->write(piece, file);
    const ConstTensor& source = piece.task->source->tensor;
    done_bytes_ += static_cast<uint64_t>((piece.end - piece.begin) * (source.elements() / rows_of(source)) *
                                         dtype_bytes(piece.task->dtype));
    if (worker != 0) return;  // the calling thread: it alone may speak
    if (asked_to_stop()) stopped = true;
    if (watch.progress) watch.progress(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
  });
  if (stopped || asked_to_stop())
    throw Cancelled({.what = "the merge was interrupted; nothing is left of it",
                     .where = directory.string(),
                     .attempt = "the same command again"});
  file.close();
  if (watch.written) watch.written(shard.file);
}

}  // namespace lockstep::load
