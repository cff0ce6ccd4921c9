#include "checkpoint/torch/pickle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

using Kind = PickleValue::Kind;

enum Opcode : uint8_t {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kPop = '0',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// Names of opcodes that do occur in pickles of other things.
constexpr std::pair<uint8_t, const char*> kRefused[] = {{'i', "INST"},
                                                        {'o', "OBJ"},
                                                        {0x81, "NEWOBJ"},
                                                        {0x92, "NEWOBJ_EX"},
                                                        {'P', "PERSID"},
                                                        {0x82, "EXT1"},
                                                        {0x83, "EXT2"},
                                                        {0x84, "EXT4"},
                                                        {'I', "INT"},
                                                        {'L', "LONG"},
                                                        {'F', "FLOAT"},
                                                        {'S', "STRING"},
                                                        {'V', "UNICODE"},
                                                        {'U', "SHORT_BINSTRING"},
                                                        {'T', "BINSTRING"},
                                                        {'B', "BINBYTES"},
                                                        {'C', "SHORT_BINBYTES"},
                                                        {'d', "DICT"},
                                                        {'l', "LIST"},
                                                        {'p', "PUT"},
                                                        {'g', "GET"},
                                                        {'0', "POP"},
                                                        {'1', "POP_MARK"},
                                                        {'2', "DUP"},
                                                        {0x8b, "LONG4"},
                                                        {0x8f, "EMPTY_SET"},
                                                        {0x91, "FROZENSET"},
                                                        {0x96, "BYTEARRAY8"}};

std::string opcode_text(uint8_t opcode) {
  for (const auto& [code, name] : kRefused)
    if (code == opcode) return name;
  return fmt::format("0x{:02x}", opcode);
}

constexpr uint8_t kNewestProtocol = 5;

}  // namespace

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, std::string_view bytes, std::span<const std::string_view> globals,
                const std::string& where, PickleRules rules)
      : pickle_(pickle),
        bytes_(rules.messages ? bytes : bytes.substr(0, Pickle::kMaxBytes)),
        globals_(globals),
        where_(where),
        rules_(rules) {}

  void run() {
    for (;;) {
      opcode_place_ = next_;
      const auto opcode = static_cast<uint8_t>(take(1)[0]);
      if (opcode == kStop) break;
      const bool known = load(opcode) || build(opcode) || (rules_.messages && load_message(opcode));
      if (!known) refuse("a pickle of something else than tensors", opcode_text(opcode));
    }
    pickle_.root_ = pop();
    pickle_.bytes_ = next_;
    if (!stack_.empty()) refuse("a damaged pickle", "values that nobody takes");
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& got, const std::string& wanted = {}) const {
    throw FormatError({.what = what,
                       .where = fmt::format("{}, byte {} of the pickle", where_, opcode_place_),
                       .got = got,
                       .wanted = wanted.empty() ? "what torch.save writes of a dictionary of tensors" : wanted,
                       .attempt = "load it where it was made and save it again: save_pretrained writes safetensors"});
  }

  std::string_view take(size_t count) {
    if (count > bytes_.size() - next_) refuse("a pickle is cut off", fmt::format("{} bytes", bytes_.size()));
    next_ += count;
    return bytes_.substr(next_ - count, count);
  }
  uint64_t number(size_t width) {
    const std::string_view text = take(width);
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(text[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n', next_);
    if (end == std::string_view::npos) refuse("a pickle is cut off", "a name without an end");
    const std::string_view text = take(end - next_);
    take(1);
    return text;
  }

  void push(PickleValue value) {
    if (pickle_.values_.size() >= Pickle::kMaxValues)
      refuse("a pickle is impossibly large", "more values", fmt::format("at most {}", Pickle::kMaxValues));
    stack_.push_back(static_cast<uint32_t>(pickle_.values_.size()));
    pickle_.values_.push_back(std::move(value));
  }
  uint32_t pop() {
    if (stack_.size() <= floor()) refuse("a damaged pickle", "a stack without values");
    const uint32_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  uint32_t top() const {
    if (stack_.size() <= floor()) refuse("a damaged pickle", "a stack without values");
    return stack_.back();
  }
  // Values below the last mark belong to what began earlier.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<uint32_t> pop_to_mark() {
    if (marks_.empty()) refuse("a damaged pickle", "no mark");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<uint32_t> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<uint32_t> pop_items(size_t count) {
    std::vector<uint32_t> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }
  PickleValue& at(uint32_t place) { return pickle_.values_[place]; }

  void push_integer(int64_t value) { push({.kind = Kind::integer, .integer = value}); }
  void push_text(uint64_t count) { push({.kind = Kind::text, .text = std::string(take(count))}); }
  void push_long() {
    const std::string text(take(number(1)));
    if (text.size() > sizeof(int64_t)) return push({.kind = Kind::long_text, .text = text});
    uint64_t value = !text.empty() && (text.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = text.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(text[i]);
    push_integer(static_cast<int64_t>(value));
  }
  void push_global(std::string name) {
    if (std::ranges::find(globals_, name) == globals_.end())
      refuse("a pickle names something that is no tensor", name, fmt::format("{}", fmt::join(globals_, ", ")));
    push({.kind = Kind::global, .text = std::move(name)});
  }

  // Opcodes that push one value. False: it is another.
  bool load(uint8_t opcode) {
    switch (opcode) {
      case kNone: push({}); return true;
      case kNewTrue:
      case kNewFalse: push({.kind = Kind::boolean, .integer = opcode == kNewTrue}); return true;
      case kBinInt: push_integer(static_cast<int32_t>(number(4))); return true;
      case kBinInt1: push_integer(static_cast<int64_t>(number(1))); return true;
      case kBinInt2: push_integer(static_cast<int64_t>(number(2))); return true;
      case kLong1: push_long(); return true;
      case kBinFloat: take(8), push({.kind = Kind::number}); return true;
      case kShortBinUnicode: push_text(number(1)); return true;
      case kBinUnicode: push_text(number(4)); return true;
      case kBinUnicode8: push_text(number(8)); return true;
      case kEmptyTuple: push({.kind = Kind::tuple}); return true;
      case kEmptyList: push({.kind = Kind::list}); return true;
      case kEmptyDict: push({.kind = Kind::dict}); return true;
      case kBinGet: recall(number(1)); return true;
      case kLongBinGet: recall(number(4)); return true;
      case kGlobal: {
        const std::string module(line());
        push_global(module + "." + std::string(line()));
        return true;
      }
      default: return false;
    }
  }

  // Opcodes of messages. False: it is another.
  bool load_message(uint8_t opcode) {
    switch (opcode) {
      case kShortBinBytes: push_bytes(number(1)); return true;
      case kBinBytes: push_bytes(number(4)); return true;
      case kBinBytes8: push_bytes(number(8)); return true;
      case kNewObj: reduce(); return true;
      case kPop: pop(); return true;
      default: return false;
    }
  }
  void push_bytes(uint64_t count) {
    const size_t at = next_;
    take(count);
    push({.kind = Kind::bytes, .integer = static_cast<int64_t>(at), .count = static_cast<int64_t>(count)});
  }

  // Opcodes that make values of others, or remember them. False: it is another.
  bool build(uint8_t opcode) {
    switch (opcode) {
      case kProto:
        if (const uint64_t protocol = number(1); protocol < 2 || protocol > kNewestProtocol)
          refuse("a pickle of another protocol", std::to_string(protocol), "2 to 5");
        return true;
      case kFrame: take(8); return true;
      case kMark: marks_.push_back(stack_.size()); return true;
      case kBinPut: memo_[number(1)] = top(); return true;
      case kLongBinPut: memo_[number(4)] = top(); return true;
      case kMemoize: memo_[memo_.size()] = top(); return true;
      case kTuple: push({.kind = Kind::tuple, .items = pop_to_mark()}); return true;
      case kTuple1:
      case kTuple2:
      case kTuple3: push({.kind = Kind::tuple, .items = pop_items(opcode - kTuple1 + 1u)}); return true;
      case kAppend: extend(Kind::list, pop_items(1)); return true;
      case kAppends: extend(Kind::list, pop_to_mark()); return true;
      case kSetItem: extend(Kind::dict, pop_items(2)); return true;
      case kSetItems: extend(Kind::dict, pop_to_mark()); return true;
      case kBinPersId: {
        const uint32_t id = pop();
        if (at(id).kind != Kind::tuple) refuse("a damaged pickle", "a persistent id that is no tuple");
        push({.kind = Kind::persistent, .items = {id}});
        return true;
      }
      case kStackGlobal: stack_global(); return true;
      case kReduce: reduce(); return true;
      case kBuild: set_state(); return true;
      default: return false;
    }
  }

  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse("a damaged pickle", "a value that was not remembered");
    stack_.push_back(found->second);
  }

  void extend(Kind kind, const std::vector<uint32_t>& items) {
    PickleValue& container = at(top());
    if (container.kind != kind || (kind == Kind::dict && items.size() % 2 != 0))
      refuse("a damaged pickle", kind == Kind::dict ? "entries of no dictionary" : "items of no list");
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  void stack_global() {
    const std::vector<uint32_t> names = pop_items(2);
    if (at(names[0]).kind != Kind::text || at(names[1]).kind != Kind::text)
      refuse("a damaged pickle", "a name that is no text");
    push_global(at(names[0]).text + "." + at(names[1]).text);
  }

  void reduce() {
    const std::vector<uint32_t> call = pop_items(2);
    if (at(call[0]).kind != Kind::global || at(call[1]).kind != Kind::tuple)
      refuse("a pickle calls something that is no name", "REDUCE");
    // An empty dictionary with an order, which ours have anyway.
    if (at(call[0]).text == "collections.OrderedDict") {
      if (!at(call[1]).items.empty()) refuse("a damaged pickle", "arguments of collections.OrderedDict");
      return push({.kind = Kind::dict});
    }
    push({.kind = Kind::call, .text = at(call[0]).text, .items = {call[1]}});
  }

  // torch's dictionaries of modules carry versions of the modules as an attribute, which is no tensor.
  void set_state() {
    const uint32_t state = pop();
    if (rules_.messages && at(top()).kind == Kind::call && at(top()).items.size() == 1) {
      at(top()).items.push_back(state);
      return;
    }
    if (at(top()).kind != Kind::dict || at(state).kind != Kind::dict)
      refuse("a pickle sets attributes of something that is no dictionary", "BUILD");
  }

  Pickle& pickle_;
  const std::string_view bytes_;
  const std::span<const std::string_view> globals_;
  const std::string& where_;
  const PickleRules rules_;
  size_t next_ = 0, opcode_place_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

Pickle::Pickle(std::string_view bytes, std::span<const std::string_view> globals, const std::string& where,
               PickleRules rules) {
  PickleMachine(*this, bytes, globals, where, rules).run();
}

}  // namespace lockstep::checkpoint
