#include "checkpoint/gguf/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace lockstep::checkpoint {

namespace {

struct PreTokenizerName {
  std::string_view steps;  // as steps_text
  const char* name;
  bool ignores_merges;  // llama.cpp takes a word that is a token whole, whatever the merges say
};

// The expressions are those of the tokenizer.json files of GPT-2, SmolLM2, Llama 3, Qwen2 to 3, Qwen3.5 and Mistral
// (Tekken).
constexpr PreTokenizerName kPreTokenizers[] = {
    {"ByteLevel with its expression", "gpt-2", false},
    {"Digits one by one, ByteLevel with its expression", "smollm", false},
    {R"(Split at (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+, ByteLevel)",
     "llama-bpe", true},
    {R"(Split at (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+, ByteLevel)",
     "qwen2", false},
    {R"(Split at (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+, ByteLevel)",
     "qwen35", false},
    {R"(Split at [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+, ByteLevel)",
     "tekken", true}};

// Kinds of tokens.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

// No loader would accept a longer text, and a tree of JSON values takes many times the memory of its text.
constexpr size_t kMaxFileBytes = size_t{256} << 20;

std::string cut(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 300 ? text : text.substr(0, 300) + " ...";
}

// One step of a pre-tokenizer; its JSON if it is none of those that occur in the table.
std::string step_text(const Json& step, const std::string& where) {
  const JsonObject object(step, where);
  const std::string type = object.string("type");
  if (type == "ByteLevel" && !object.boolean("add_prefix_space", true))
    return object.boolean("use_regex", true) ? "ByteLevel with its expression" : "ByteLevel";
  if (type == "Digits" && object.boolean("individual_digits", false)) return "Digits one by one";
  if (type == "Split" && object.string("behavior") == "Isolated" && !object.boolean("invert", false) &&
      object.object("pattern").has("Regex"))
    return "Split at " + object.object("pattern").string("Regex");
  return cut(step);
}

std::string steps_text(const Json& pre_tokenizer, const std::string& where) {
  if (pre_tokenizer.is_null()) return "none";
  if (!pre_tokenizer.is_object() || pre_tokenizer.value("type", Json()) != "Sequence")
    return step_text(pre_tokenizer, where);
  std::vector<std::string> steps;
  for (const Json& step : JsonObject(pre_tokenizer, where).value("pretokenizers"))
    steps.push_back(step_text(step, where));
  return fmt::format("{}", fmt::join(steps, ", "));
}

void check_normalizer(const JsonObject& tokenizer) {
  if (!tokenizer.has("normalizer")) return;
  const Json& normalizer = tokenizer.value("normalizer");
  if (normalizer.is_object() && normalizer.value("type", Json()) == "NFC") return;
  throw FormatError({.what = "llama.cpp does not normalize text as this tokenizer does",
                     .where = tokenizer.where() + ": normalizer",
                     .got = cut(normalizer),
                     .wanted = "null or NFC"});
}

const PreTokenizerName& name_of_steps(const JsonObject& tokenizer) {
  check_normalizer(tokenizer);
  const std::string where = tokenizer.where() + ": pre_tokenizer";
  const Json pre = tokenizer.has("pre_tokenizer") ? tokenizer.value("pre_tokenizer") : Json();
  const std::string steps = steps_text(pre, where);
  std::vector<std::string> names;
  for (const PreTokenizerName& known : kPreTokenizers) {
    if (known.steps == steps) return known;
    names.emplace_back(known.name);
  }
  throw FormatError({.what = "llama.cpp has no name for this pre-tokenizer that is known here",
                     .where = where,
                     .got = steps,
                     .wanted = fmt::format("that of {}", fmt::join(names, ", ")),
                     .attempt = "an export of the adapter alone, for a base that llama.cpp's own script converted"});
}

void check_model(const JsonObject& model) {
  const auto refuse = [&](const char* key, const std::string& wanted) {
    throw FormatError({.what = "llama.cpp has no such tokenizer",
                       .where = model.where() + ": " + key,
                       .got = cut(model.value(key)),
                       .wanted = wanted});
  };
  if (model.string("type") != "BPE") refuse("type", "BPE");
  if (model.boolean("byte_fallback", false)) refuse("byte_fallback", "false (byte-level BPE)");
  if (!model.string("continuing_subword_prefix", "").empty()) refuse("continuing_subword_prefix", "none");
  if (!model.string("end_of_word_suffix", "").empty()) refuse("end_of_word_suffix", "none");
}

int32_t token_id(const Json& id, const std::string& where) {
  constexpr int64_t kMaxTokens = int64_t{1} << 24;
  if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxTokens) return id.get<int32_t>();
  throw FormatError({.what = "a token has an impossible id", .where = where, .got = cut(id)});
}

class Tokens {
 public:
  Tokens(const JsonObject& tokenizer, int64_t vocab_size)
      : texts_(static_cast<size_t>(vocab_size)), types_(static_cast<size_t>(vocab_size), kUnused) {
    const JsonObject vocab = tokenizer.object("model").object("vocab");
    for (const auto& [text, id] : vocab.json().items()) add(text, token_id(id, vocab.where() + ": " + text), kNormal);
    if (tokenizer.has("added_tokens"))
      for (const Json& item : tokenizer.value("added_tokens")) {
        const JsonObject token(item, tokenizer.where() + ": added_tokens");
        add(token.string("content"), token_id(token.value("id"), token.where()),
            token.boolean("special", false) ? kControl : kUserDefined);
      }
    for (size_t id = 0; id < texts_.size(); ++id)
      if (types_[id] == kUnused) texts_[id] = fmt::format("[PAD{}]", id);
  }

  std::span<const std::string> texts() const { return texts_; }
  std::span<const int32_t> types() const { return types_; }
  int64_t num_without_a_row() const { return num_without_a_row_; }
  std::optional<int32_t> id(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void add(const std::string& text, int32_t id, int32_t type) {
    if (static_cast<size_t>(id) >= texts_.size()) {
      ++num_without_a_row_;
      return;
    }
    texts_[static_cast<size_t>(id)] = text;
    types_[static_cast<size_t>(id)] = type;
    ids_[text] = id;
  }

  std::vector<std::string> texts_;
  std::vector<int32_t> types_;
  std::map<std::string, int32_t> ids_;
  int64_t num_without_a_row_ = 0;
};

// "a b", which is one of the two spellings of tokenizer.json too.
std::vector<std::string> merges_of(const JsonObject& model) {
  std::vector<std::string> merges;
  for (const Json& merge : model.value("merges")) {
    std::string text;
    if (merge.is_string())
      text = merge.get<std::string>();
    else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
      text = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    if (std::ranges::count(text, ' ') != 1)
      throw FormatError({.what = "a merge that is none of two tokens without spaces",
                         .where = model.where() + ": merges",
                         .got = cut(merge)});
    merges.push_back(std::move(text));
  }
  return merges;
}

// The tokens that TemplateProcessing puts before and behind a text.
struct Around {
  std::vector<std::string> before, behind;
};

Around tokens_around(const JsonObject& tokenizer) {
  Around around;
  if (!tokenizer.has("post_processor")) return around;
  const std::string where = tokenizer.where() + ": post_processor";
  const Json& given = tokenizer.value("post_processor");
  const bool sequence = JsonObject(given, where).string("type") == "Sequence";
  for (const Json& step : sequence ? JsonObject(given, where).value("processors") : Json::array({given})) {
    const JsonObject processor(step, where);
    const std::string type = processor.string("type");
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing")
      throw FormatError({.what = "llama.cpp has no such post-processor", .where = where, .got = cut(step)});
    bool behind = false;
    for (const Json& piece : processor.value("single")) {
      const JsonObject part(piece, where + ": single");
      if (part.has("Sequence"))
        behind = true;
      else
        (behind ? around.behind : around.before).push_back(part.object("SpecialToken").string("id"));
    }
  }
  if (around.before.size() > 1 || around.behind.size() > 1)
    throw FormatError({.what = "llama.cpp puts one token before a text and one behind it at most",
                       .where = where,
                       .got = cut(given)});
  return around;
}

class SpecialIds {
 public:
  SpecialIds(GgufMetadata& metadata, const Tokens& tokens, const GgufTokenizerFacts& facts, std::string where)
      : metadata_(metadata), tokens_(tokens), facts_(facts), where_(std::move(where)) {}

  // Returns notes for the user.
  std::vector<std::string> add(const Around& around) {
    std::vector<std::string> notes;
    const std::optional<int32_t> bos = around.before.empty() ? named("bos_token") : required(around.before[0]);
    if (bos) add_id("bos", *bos);
    const std::vector<int32_t> ends = ends_of(around);
    constexpr const char* kEndKeys[] = {"eos", "eot", "eom"};
    for (size_t i = 0; i < ends.size() && i < std::size(kEndKeys); ++i) add_id(kEndKeys[i], ends[i]);
    if (ends.size() > std::size(kEndKeys))
      notes.push_back(
          fmt::format("a GGUF file names three end tokens; llama.cpp goes on behind {} unless it knows them",
                      fmt::join(std::span(ends).subspan(std::size(kEndKeys)), ", ")));
    if (const auto id = named("pad_token")) add_id("padding", *id);
    if (const auto id = named("unk_token")) add_id("unknown", *id);
    metadata_.add_bool("tokenizer.ggml.add_bos_token", !around.before.empty());
    metadata_.add_bool("tokenizer.ggml.add_eos_token", !around.behind.empty());
    return notes;
  }

 private:
  std::optional<int32_t> named(const std::string& name) const {
    const auto text = facts_.special_tokens.find(name);
    return text == facts_.special_tokens.end() ? std::nullopt : tokens_.id(text->second);
  }

  int32_t required(const std::string& text) const {
    if (const auto id = tokens_.id(text)) return *id;
    throw FormatError({.what = "the post-processor names a token that is none", .where = where_, .got = text});
  }

  // The first is what llama.cpp calls EOS: the tokenizer's eos_token if it ends a sequence, else the model's first.
  std::vector<int32_t> ends_of(const Around& around) const {
    std::vector<int32_t> ends = facts_.end_ids;
    const std::optional<int32_t> eos = around.behind.empty() ? named("eos_token") : required(around.behind[0]);
    const auto found = eos ? std::ranges::find(ends, *eos) : ends.end();
    if (found != ends.end()) std::rotate(ends.begin(), found, found + 1);
    if (eos && found == ends.end() && (ends.empty() || !around.behind.empty())) ends.insert(ends.begin(), *eos);
    return ends;
  }

  void add_id(const std::string& name, int32_t id) {
    metadata_.add_u32("tokenizer.ggml." + name + "_token_id", static_cast<uint32_t>(id));
  }

  GgufMetadata& metadata_;
  const Tokens& tokens_;
  const GgufTokenizerFacts& facts_;
  const std::string where_;
};

}  // namespace

std::string gguf_pre_tokenizer(const Json& tokenizer, const std::string& where) {
  return name_of_steps(JsonObject(tokenizer, where)).name;
}

std::vector<std::string> add_gguf_tokenizer(GgufMetadata& metadata, const fs::Path& tokenizer_json,
                                            const GgufTokenizerFacts& facts) {
  const std::string where = tokenizer_json.string();
  const std::string text = fs::read_file(tokenizer_json);
  const Json json = parse_json(text, where);
  const JsonObject tokenizer(json, where);
  const PreTokenizerName& pre = name_of_steps(tokenizer);
  const JsonObject model = tokenizer.object("model");
  check_model(model);
  const Tokens tokens(tokenizer, facts.vocab_size);
  std::vector<std::string> notes;
  if (model.boolean("ignore_merges", false) != pre.ignores_merges)
    notes.push_back(fmt::format(
        "tokenizer.json says ignore_merges {}, which llama.cpp does the other way round with a {} tokenizer: it may "
        "cut rare words differently",
        !pre.ignores_merges, pre.name));
  if (tokenizer.has("normalizer"))
    notes.push_back("llama.cpp does not normalize text: what is not NFC it cuts differently");
  if (tokens.num_without_a_row() > 0)
    notes.push_back(fmt::format("{} tokens of the tokenizer have no row in the model and are left out",
                                tokens.num_without_a_row()));
  metadata.add_string("tokenizer.ggml.model", "gpt2");
  metadata.add_string("tokenizer.ggml.pre", pre.name);
  metadata.add_strings("tokenizer.ggml.tokens", tokens.texts());
  metadata.add_i32s("tokenizer.ggml.token_type", tokens.types());
  metadata.add_strings("tokenizer.ggml.merges", merges_of(model));
  const std::vector<std::string> more = SpecialIds(metadata, tokens, facts, where).add(tokens_around(tokenizer));
  notes.insert(notes.end(), more.begin(), more.end());
  if (!facts.chat_template.empty()) metadata.add_string("tokenizer.chat_template", facts.chat_template);
  return notes;
}

}  // namespace lockstep::checkpoint
