#include <fmt/format.h>

#include <cmath>
#include <map>
#include <ostream>
#include <set>
#include <utility>

#include "checkpoint/file_hash.h"
#include "checkpoint/hf_directory.h"
#include "commands/files/commands.h"
#include "commands/files/tensor_reader.h"
#include "commands/files/update_norms.h"
#include "core/printable.h"
#include "load/lora_factors.h"

namespace lockstep::commands {

namespace {

// One module's update, or one tensor, of both.
struct DiffRow {
  std::string name;
  std::string a, b;  // rank and alpha, or type and shape; empty: only the other has it
  UpdateNorms norms;
  bool differs = false;
};

struct DiffReport {
  const char* kind = "";
  std::map<std::string, std::pair<std::string, std::string>> settings;  // what differs, as JSON text or a SHA-256
  std::vector<DiffRow> rows;
  UpdateNorms total;

  bool equal() const {
    return settings.empty() && std::ranges::none_of(rows, [](const DiffRow& row) { return row.differs; });
  }
};

// Norms of everything together.
UpdateNorms total_of(const std::vector<DiffRow>& rows) {
  UpdateNorms squares;
  for (const DiffRow& row : rows) {
    squares.a += row.norms.a * row.norms.a;
    squares.b += row.norms.b * row.norms.b;
    squares.difference += row.norms.difference * row.norms.difference;
    squares.inner += row.norms.inner;
  }
  return {.a = std::sqrt(squares.a),
          .b = std::sqrt(squares.b),
          .difference = std::sqrt(squares.difference),
          .inner = squares.inner};
}

// A NaN is a difference.
bool beyond(const UpdateNorms& norms, double tolerance) {
  return !(norms.difference <= tolerance * std::max(norms.a, norms.b));
}

// The keys of two objects whose values differ; one that is absent is null.
void compare_settings(DiffReport& report, const fs::Path& a, const fs::Path& b, const std::string& file) {
  const auto read = [&](const fs::Path& directory) {
    return fs::is_file(directory / file) ? read_json((directory / file).string()) : Json::object();
  };
  const Json first = read(a), second = read(b);
  std::set<std::string> keys;
  for (const Json& json : {first, second})
    for (const auto& item : JsonObject(json, file).json().items()) keys.insert(item.key());
  for (const std::string& key : keys) {
    const Json x = first.value(key, Json()), y = second.value(key, Json());
    if (x != y) report.settings[file + ": " + key] = {json_text(x), json_text(y)};
  }
}

std::string rank_text(const load::ModuleFactors* module) {
  return module == nullptr ? "" : fmt::format("rank {} alpha {:g}", module->rank, module->alpha);
}

// nullptr where it changes no weight by factors.
const load::ModuleFactors* find_update(const load::AdapterFactors& adapter, const std::string& module) {
  const load::ModuleFactors* const factors = adapter.find(module);
  return factors != nullptr && factors->has_update() ? factors : nullptr;
}

using TensorPairs = std::map<std::string, std::pair<const NamedTensor*, const NamedTensor*>>;

TensorPairs paired(const NamedTensors& a, const NamedTensors& b) {
  TensorPairs tensors;
  for (const NamedTensor& tensor : a) tensors[tensor.name].first = &tensor;
  for (const NamedTensor& tensor : b) tensors[tensor.name].second = &tensor;
  return tensors;
}

UpdateNorms tensor_norms(const NamedTensor* a, const NamedTensor* b, TensorReader& reader_a, TensorReader& reader_b) {
  UpdateNorms squares;
  const int64_t count = (a != nullptr ? a : b)->tensor.elements();
  for (int64_t begin = 0; begin < count; begin += TensorReader::kMax) {
    const int64_t size = std::min(TensorReader::kMax, count - begin);
    const float* const x = a == nullptr ? nullptr : reader_a.read(*a, begin, size);
    const float* const y = b == nullptr ? nullptr : reader_b.read(*b, begin, size);
    for (int64_t i = 0; i < size; ++i) {
      const double p = x == nullptr ? 0 : x[i], q = y == nullptr ? 0 : y[i];
      squares.a += p * p, squares.b += q * q, squares.inner += p * q, squares.difference += (p - q) * (p - q);
    }
  }
  return {.a = std::sqrt(squares.a),
          .b = std::sqrt(squares.b),
          .difference = std::sqrt(squares.difference),
          .inner = squares.inner};
}

void diff_tensor(DiffRow& row, const NamedTensor* a, const NamedTensor* b, double tolerance, TensorReader& reader_a,
                 TensorReader& reader_b) {
  if (a != nullptr) row.a = shape_text(a->tensor);
  if (b != nullptr) row.b = shape_text(b->tensor);
  const bool comparable = a == nullptr || b == nullptr || a->tensor.shape == b->tensor.shape;
  if (comparable && TensorReader::reads((a != nullptr ? a : b)->tensor.dtype) &&
      (a == nullptr || b == nullptr || TensorReader::reads(b->tensor.dtype)))
    row.norms = tensor_norms(a, b, reader_a, reader_b);
  else if (row.a == row.b)
    row.norms.difference = same_stored_bytes(*a, *b) ? 0 : std::numeric_limits<double>::quiet_NaN();
  row.differs = row.a != row.b || beyond(row.norms, tolerance);
}

DiffReport diff_adapters(const fs::Path& a, const fs::Path& b, double tolerance, Stream& stream) {
  const load::AdapterFactors first{checkpoint::PeftDirectory(a)}, second{checkpoint::PeftDirectory(b)};
  DiffReport report{.kind = "adapter"};
  compare_settings(report, a, b, checkpoint::kAdapterConfigFile);
  std::set<std::string> names;
  for (const load::AdapterFactors* adapter : {&first, &second})
    for (const load::ModuleFactors& module : adapter->modules())
      if (module.has_update()) names.insert(module.name);
  for (const std::string& name : names)
    report.rows.push_back(
        {.name = name, .a = rank_text(find_update(first, name)), .b = rank_text(find_update(second, name))});
  stream.parallel(static_cast<int64_t>(report.rows.size()), [&](int64_t index, int) {
    DiffRow& row = report.rows[static_cast<size_t>(index)];
    row.norms = update_norms(find_update(first, row.name), find_update(second, row.name));
    row.differs = row.a != row.b || beyond(row.norms, tolerance);
  });
  const NamedTensors others_a = first.beside_factors(), others_b = second.beside_factors();
  TensorReader reader_a, reader_b;
  for (const auto& [name, pair] : paired(others_a, others_b)) {
    DiffRow& row = report.rows.emplace_back(DiffRow{.name = name, .a = {}, .b = {}, .norms = {}});
    diff_tensor(row, pair.first, pair.second, tolerance, reader_a, reader_b);
  }
  return report;
}

DiffReport diff_models(const fs::Path& a, const fs::Path& b, double tolerance, Stream& stream) {
  checkpoint::HfDirectory first(a), second(b);
  first.open_weights(), second.open_weights();
  DiffReport report{.kind = "model"};
  for (const char* file : {"config.json", "generation_config.json"}) compare_settings(report, a, b, file);
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"}) {
    const auto hash = [&](const fs::Path& directory) {
      return fs::is_file(directory / file) ? checkpoint::file_sha256(directory / file) : "absent";
    };
    if (const auto x = hash(a), y = hash(b); x != y) report.settings[file] = {x, y};
  }
  const TensorPairs tensors = paired(first.tensors(), second.tensors());
  for (const auto& [name, pair] : tensors) report.rows.push_back({.name = name, .a = {}, .b = {}, .norms = {}});
  std::vector<TensorReader> readers_a(static_cast<size_t>(stream.threads())), readers_b(readers_a.size());
  stream.parallel(static_cast<int64_t>(report.rows.size()), [&](int64_t index, int worker) {
    DiffRow& row = report.rows[static_cast<size_t>(index)];
    const auto [x, y] = tensors.at(row.name);
    diff_tensor(row, x, y, tolerance, readers_a[static_cast<size_t>(worker)], readers_b[static_cast<size_t>(worker)]);
  });
  return report;
}

// JSON has no NaN.
OrderedJson finite_or_null(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson();
}

OrderedJson json_of(const UpdateNorms& norms) {
  return {{"norm_a", finite_or_null(norms.a)},
          {"norm_b", finite_or_null(norms.b)},
          {"norm_difference", finite_or_null(norms.difference)},
          {"cosine", finite_or_null(norms.cosine())}};
}

OrderedJson json_of(const DiffReport& report, const DiffOptions& options) {
  OrderedJson json = {{"kind", report.kind}, {"a", options.a}, {"b", options.b}, {"equal", report.equal()}};
  json["settings"] = OrderedJson::object();
  for (const auto& [key, values] : report.settings) json["settings"][key] = {values.first, values.second};
  json["rows"] = OrderedJson::array();
  for (const DiffRow& row : report.rows) {
    OrderedJson item = {{"name", row.name}, {"a", row.a}, {"b", row.b}, {"differs", row.differs}};
    item.update(json_of(row.norms));
    json["rows"].push_back(std::move(item));
  }
  json["total"] = json_of(report.total);
  return json;
}

std::string norms_text(const UpdateNorms& norms) {
  return fmt::format("{:>12.6g} {:>12.6g} {:>12.6g} {:>9.6f}", norms.a, norms.b, norms.difference, norms.cosine());
}

// Of an adapter every module, of a model the tensors that differ.
void print(const DiffReport& report, const DiffOptions& options, std::ostream& out) {
  out << fmt::format("{} a  {}\n{} b  {}\n", report.kind, options.a, report.kind, options.b);
  for (const auto& [key, values] : report.settings)
    out << printable(fmt::format("{}: {} | {}", key, values.first, values.second)) << "\n";
  const bool adapters = std::string_view(report.kind) == "adapter";
  size_t width = 5, differing = 0;
  for (const DiffRow& row : report.rows) width = std::max(width, row.name.size());
  out << fmt::format("  {:<{}} {:>12} {:>12} {:>12} {:>9}\n", "", width, "|a|", "|b|", "|a - b|", "cosine");
  for (const DiffRow& row : report.rows) {
    differing += row.differs;
    if (!adapters && !row.differs) continue;
    out << printable(fmt::format("{} {:<{}} {}  {}", row.differs ? '!' : ' ', row.name, width, norms_text(row.norms),
                                 row.a == row.b  ? row.a
                                 : row.a.empty() ? "only in b: " + row.b
                                 : row.b.empty() ? "only in a: " + row.a
                                                 : row.a + " | " + row.b))
        << "\n";
  }
  out << fmt::format("  {:<{}} {}\n", "total", width, norms_text(report.total));
  out << fmt::format("{}: {} of {} {}s differ, and {} setting{}\n", report.equal() ? "equal" : "different", differing,
                     report.rows.size(), adapters ? "module" : "tensor", report.settings.size(),
                     report.settings.size() == 1 ? "" : "s");
}

}  // namespace

bool run_diff(const DiffOptions& options, const recipes::Control& control) {
  const fs::Path a(options.a), b(options.b);
  const bool models = fs::is_file(a / "config.json") && !fs::is_file(a / checkpoint::kAdapterConfigFile);
  if (models != (fs::is_file(b / "config.json") && !fs::is_file(b / checkpoint::kAdapterConfigFile)))
    throw ConfigError({.what = "an adapter cannot be compared with a model",
                       .where = options.a + ", " + options.b,
                       .wanted = "two adapters or two models"});
  Stream stream(options.stream);
  DiffReport report = models ? diff_models(a, b, options.tolerance, stream)
                             : diff_adapters(load::require_adapter_directory(a), load::require_adapter_directory(b),
                                             options.tolerance, stream);
  report.total = total_of(report.rows);
  if (options.json)
    *control.out << json_text(json_of(report, options)) << "\n";
  else
    print(report, options, *control.out);
  return report.equal();
}

}  // namespace lockstep::commands
