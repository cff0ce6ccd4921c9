#include "checkpoint/torch/torch_contents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kTensor2 = "torch._utils._rebuild_tensor_v2", kTensor1 = "torch._utils._rebuild_tensor";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";

constexpr std::pair<std::string_view, DType> kStorages[] = {
    {"torch.FloatStorage", DType::f32},  {"torch.HalfStorage", DType::f16}, {"torch.BFloat16Storage", DType::bf16},
    {"torch.DoubleStorage", DType::f64}, {"torch.LongStorage", DType::i64}, {"torch.IntStorage", DType::i32},
    {"torch.ByteStorage", DType::u8}};

constexpr std::string_view kGlobals[] = {"collections.OrderedDict",
                                         kTensor2,
                                         kTensor1,
                                         kParameter,
                                         "torch.FloatStorage",
                                         "torch.HalfStorage",
                                         "torch.BFloat16Storage",
                                         "torch.DoubleStorage",
                                         "torch.LongStorage",
                                         "torch.IntStorage",
                                         "torch.ByteStorage"};

class ContentsReader {
 public:
  ContentsReader(const Pickle& pickle, const std::string& where) : pickle_(pickle), where_(where) {}

  TorchContents read() {
    if (pickle_.root().kind != Kind::dict) refuse("something else than a dictionary");
    const std::vector<uint32_t>& items = pickle_.root().items;
    std::set<std::string_view> names;
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue& key = pickle_.at(items[i]);
      if (key.kind != Kind::text) refuse("a key that is no text");
      if (!names.insert(key.text).second) refuse("a name that is there twice: " + key.text);
      name_ = key.text;
      contents_.views.push_back(view(pickle_.at(items[i + 1])));
    }
    return std::move(contents_);
  }

 private:
  [[noreturn]] void refuse(const std::string& got,
                           const std::string& wanted = "a dictionary of names and tensors") const {
    throw FormatError({.what = "a file of torch.save holds something else than tensors",
                       .where = name_.empty() ? where_ : where_ + ": " + name_,
                       .got = got,
                       .wanted = wanted});
  }

  TorchView view(const PickleValue& value) {
    if (value.kind != Kind::call) refuse("a value that is no tensor");
    const std::vector<uint32_t>& arguments = pickle_.at(value.items[0]).items;
    if (value.text == kParameter) {
      // data, requires_grad, hooks
      if (arguments.size() != 3 || pickle_.at(arguments[0]).text == kParameter) refuse("a damaged parameter");
      return view(pickle_.at(arguments[0]));
    }
    // storage, offset, shape, strides, requires_grad, hooks, metadata
    const bool complete = (value.text == kTensor2 && (arguments.size() == 6 || arguments.size() == 7)) ||
                          (value.text == kTensor1 && arguments.size() == 4);
    if (!complete) refuse("a tensor of another kind", "one made by " + std::string(kTensor2));
    TorchView made{.name = name_, .storage = storage(pickle_.at(arguments[0]))};
    made.dtype = contents_.storages.at(made.storage).dtype;
    made.offset = count(pickle_.at(arguments[1]), "an offset");
    set_shape(made, counts(pickle_.at(arguments[2]), "a shape"), counts(pickle_.at(arguments[3]), "strides"));
    return made;
  }

  // 'storage', type, key, location, elements, and in the older format a view that nobody writes any more.
  std::string storage(const PickleValue& value) {
    if (value.kind != Kind::persistent) refuse("a tensor without a storage");
    const std::vector<uint32_t>& id = pickle_.at(value.items[0]).items;
    const auto is_text = [&](size_t i, std::string_view text = {}) {
      const PickleValue& item = pickle_.at(id[i]);
      return item.kind == Kind::text && (text.empty() || item.text == text);
    };
    const bool complete = (id.size() == 5 || (id.size() == 6 && pickle_.at(id[5]).kind == Kind::none)) &&
                          is_text(0, "storage") && is_text(2) && is_text(3);
    if (!complete) refuse("a damaged storage");
    const PickleValue& type = pickle_.at(id[1]);
    const auto* known =
        std::ranges::find(kStorages, std::string_view(type.text), [](const auto& s) { return s.first; });
    if (type.kind != Kind::global || known == std::end(kStorages)) refuse("a storage of another type: " + type.text);
    const TorchStorage made{.dtype = known->second, .elements = count(pickle_.at(id[4]), "a number of elements")};
    const auto [stored, fresh] = contents_.storages.emplace(pickle_.at(id[2]).text, made);
    if (!fresh && (stored->second.dtype != made.dtype || stored->second.elements != made.elements))
      refuse("a storage with two types or sizes");
    return stored->first;
  }

  int64_t count(const PickleValue& value, const char* what) const {
    if (value.kind != Kind::integer || value.integer < 0) refuse(std::string(what) + " that is no count");
    return value.integer;
  }
  std::vector<int64_t> counts(const PickleValue& value, const char* what) const {
    constexpr size_t kMaxDimensions = 4;
    if (value.kind != Kind::tuple) refuse(std::string(what) + " that is no tuple");
    if (value.items.size() > kMaxDimensions)
      refuse(fmt::format("{} dimensions", value.items.size()), fmt::format("at most {}", kMaxDimensions));
    std::vector<int64_t> list;
    for (const uint32_t item : value.items) list.push_back(count(pickle_.at(item), what));
    return list;
  }

  void set_shape(TorchView& made, std::vector<int64_t> shape, std::vector<int64_t> strides) const {
    if (shape.size() != strides.size()) refuse("as many strides as dimensions do not have");
    if (shape.empty()) shape = strides = {1};
    made.rank = static_cast<int>(shape.size());
    std::ranges::copy(shape, made.shape.begin());
    std::ranges::copy(strides, made.strides.begin());
    check_places(made, shape, strides);
  }

  // Every element lies in the storage, and none in two places: what is expanded would be larger than the file.
  void check_places(const TorchView& made, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides) const {
    const int64_t stored = contents_.storages.at(made.storage).elements;
    const std::string text = fmt::format("shape {}, strides {} from {} in {} elements", fmt::join(shape, " x "),
                                         fmt::join(strides, ", "), made.offset, stored);
    if (std::ranges::find(shape, 0) != shape.end()) {
      int64_t product = 1;
      for (const int64_t size : shape)
        if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) refuse(text, "a possible shape");
      if (made.offset > stored) refuse(text, "a tensor inside its storage");
      return;
    }
    std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
    for (size_t i = 0; i < shape.size(); ++i)
      if (shape[i] > 1) dimensions.emplace_back(strides[i], shape[i]);
    std::ranges::sort(dimensions);
    int64_t last = 0;  // the farthest element of the dimensions so far
    for (const auto& [stride, size] : dimensions) {
      int64_t extent = 0;
      if (stride <= last) refuse(text, "no element in two places: .contiguous() before saving");
      if (__builtin_mul_overflow(stride, size - 1, &extent) || __builtin_add_overflow(last, extent, &last))
        refuse(text, "a tensor inside its storage");
    }
    if (made.offset >= stored || last >= stored - made.offset) refuse(text, "a tensor inside its storage");
  }

  const Pickle& pickle_;
  const std::string& where_;
  std::string name_;
  TorchContents contents_;
};

}  // namespace

int64_t TorchView::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank; ++i) product *= shape[static_cast<size_t>(i)];
  return product;
}

bool TorchView::contiguous() const {
  int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    if (shape[at] != 1 && strides[at] != expected) return false;
    expected *= shape[at];
  }
  return true;
}

TorchContents torch_contents(const Pickle& pickle, const std::string& where) {
  return ContentsReader(pickle, where).read();
}

std::span<const std::string_view> torch_globals() {
  return kGlobals;
}

}  // namespace lockstep::checkpoint
