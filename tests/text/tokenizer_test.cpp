#include "text/tokenizer.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/utf8.h"
#include "support/temp_directory.h"
#include "support/xz.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;

const fs::Path kGoldens = fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden/tokenizer";

std::vector<Json> read_cases(const fs::Path& file) {
  std::vector<Json> cases;
  const std::string bytes = fs::read_file(file);
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = bytes.find('\n', begin);
    cases.push_back(parse_json(std::string_view(bytes).substr(begin, end - begin), file.string()));
    begin = end + 1;
  }
  return cases;
}

// What a server would send: token by token, every part whole characters.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  StreamingDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (int32_t id : ids) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(valid_utf8_prefix(part), part.size());
    text += part;
  }
  text += decoder.finish();
  EXPECT_EQ(decoder.finish(), "");
  return text;
}

Json spans_json(const std::vector<Span>& spans) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back({span.begin, span.end});
  return list;
}

void check_case(const Tokenizer& tokenizer, const Json& golden) {
  const std::vector<int32_t> ids = golden["ids"];
  if (golden.contains("text")) {
    const std::string text = golden["text"];
    EXPECT_EQ(tokenizer.encode(text), ids) << golden.dump();
    const Encoding encoding = tokenizer.encode_with_spans(text);
    EXPECT_EQ(encoding.ids, ids) << golden.dump();
    EXPECT_EQ(encoding.spans.size(), ids.size()) << golden.dump();
    if (golden.contains("spans")) {
      EXPECT_EQ(spans_json(encoding.spans), golden["spans"]) << golden.dump();
    }
    if (golden.contains("with_special")) {
      const std::vector<int32_t> with_special = golden["with_special"];
      EXPECT_EQ(tokenizer.encode(text, true), with_special) << golden.dump();
      EXPECT_EQ(tokenizer.encode_with_spans(text, true).ids, with_special) << golden.dump();
    }
  }
  EXPECT_EQ(tokenizer.decode(ids), golden["decoded"].get<std::string>()) << golden.dump();
  EXPECT_EQ(streamed(tokenizer, ids, false), golden["decoded"].get<std::string>()) << golden.dump();
  if (!golden.contains("without_special")) return;
  EXPECT_EQ(tokenizer.decode(ids, true), golden["without_special"].get<std::string>()) << golden.dump();
  EXPECT_EQ(streamed(tokenizer, ids, true), golden["without_special"].get<std::string>()) << golden.dump();
}

Json gpt2_style() {
  return read_json((kGoldens / "gpt2_style/tokenizer.json").string());
}

Tokenizer parse(const Json& json) {
  return Tokenizer::parse(json.dump(), "DIR/tokenizer.json");
}

Tokenizer arith() {
  return Tokenizer::load((fs::Path(LOCKSTEP_SOURCE_DIR) / "models/arith").string());
}

TEST(TokenizerGolden, Gpt2StyleAndItsVariants) {
  const Json patches = read_json((kGoldens / "gpt2_style/variants.json").string());
  std::map<std::string, Tokenizer> tokenizers;
  for (const auto& item : patches.items()) {
    Json json = gpt2_style();
    json.merge_patch(item.value());
    tokenizers.emplace(item.key(), parse(json));
  }
  const std::vector<Json> cases = read_cases(kGoldens / "gpt2_style/cases.jsonl");
  EXPECT_GT(cases.size(), 1000u);
  for (const Json& golden : cases) check_case(tokenizers.at(golden["variant"]), golden);
}

// Every component, alone and together (tools/golden/tokenizer_styles.py).
TEST(TokenizerGolden, StylesAndTheirVariants) {
  const std::map<std::string, Json> bases = {{"characters", read_json((kGoldens / "styles/characters.json").string())},
                                             {"bytes", gpt2_style()}};
  const Json variants = read_json((kGoldens / "styles/variants.json").string());
  std::map<std::string, Tokenizer> tokenizers;
  for (const auto& item : variants.items()) {
    Json json = bases.at(item.value()["base"]);
    json.merge_patch(item.value()["patch"]);
    tokenizers.emplace(item.key(), parse(json));
  }
  const std::vector<Json> cases = read_cases(kGoldens / "styles/cases.jsonl");
  EXPECT_GT(cases.size(), 2500u);
  for (const Json& golden : cases) {
    SCOPED_TRACE(golden["variant"].get<std::string>());
    check_case(tokenizers.at(golden["variant"]), golden);
  }
}

TEST(TokenizerGolden, EmbeddedModel) {
  const Tokenizer tokenizer = arith();
  const std::vector<Json> cases = read_cases(kGoldens / "arith_cases.jsonl");
  EXPECT_GT(cases.size(), 300u);
  for (const Json& golden : cases) check_case(tokenizer, golden);
}

TEST(TokenizerGolden, SmolLM2) {
  const fs::Path file = fs::Path(LOCKSTEP_TEST_DATA) / "tokenizers/smollm2/tokenizer.json";
  if (std::string_view(LOCKSTEP_TEST_DATA).empty() || !std::filesystem::exists(file))
    GTEST_SKIP() << "no " << file << ": configure with -DLOCKSTEP_TEST_DATA=DIR";
  Json json = read_json(file.string());
  const Tokenizer as_is = parse(json);
  for (const Json& golden : read_cases(kGoldens / "smollm2_cases.jsonl")) check_case(as_is, golden);
  json["pre_tokenizer"] = read_json((kGoldens / "source.json").string())["published_pre_tokenizer"];
  const Tokenizer published = parse(json);
  for (const Json& golden : read_cases(kGoldens / "smollm2_digits_cases.jsonl")) check_case(published, golden);
}

// Those of ../shared/tokenizers, compressed as they are (tools/golden/tokenizer_real.py).
TEST(TokenizerGolden, RealTokenizers) {
  const fs::Path folder = fs::Path(LOCKSTEP_TEST_DATA) / "tokenizers";
  const std::vector<Json> cases = read_cases(kGoldens / "real_cases.jsonl");
  EXPECT_GT(cases.size(), 200u);
  const Json hashes = read_json((kGoldens / "real_source.json").string());
  for (const auto& item : hashes.items()) {
    const fs::Path file = folder / item.key() / "tokenizer.json.xz";
    if (std::string_view(LOCKSTEP_TEST_DATA).empty() || !std::filesystem::exists(file))
      GTEST_SKIP() << "no " << file << ": configure with -DLOCKSTEP_TEST_DATA=DIR";
    SCOPED_TRACE(item.key());
    const std::string json = lockstep::testing::read_xz(file);
    Sha256 hash;
    hash.update(json);
    ASSERT_EQ(hash.hex(), item.value().get<std::string>());
    const Tokenizer tokenizer = Tokenizer::parse(json, file.string());
    for (const Json& golden : cases)
      if (golden["tokenizer"] == item.key()) check_case(tokenizer, golden);
  }
}

TEST(Tokenizer, OldSpellingOfMerges) {
  Json json = gpt2_style();
  Json spelled = Json::array({"#version: 0.2"});
  for (const Json& merge : json["model"]["merges"])
    spelled.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  json["model"]["merges"] = spelled;
  const Tokenizer tokenizer = parse(json);
  for (const Json& golden : read_cases(kGoldens / "gpt2_style/cases.jsonl"))
    if (golden["variant"] == "plain") check_case(tokenizer, golden);
}

TEST(Tokenizer, Lookups) {
  const Json json = gpt2_style();
  const Tokenizer tokenizer = parse(json);
  const int32_t end = tokenizer.token_id("<|endoftext|>").value();
  EXPECT_EQ(end, 0);
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_EQ(tokenizer.token_bytes(end), "<|endoftext|>");
  const int32_t think = tokenizer.token_id("<think>").value();
  EXPECT_FALSE(tokenizer.is_special(think));
  EXPECT_EQ(tokenizer.token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.vocab_size(), 3000 + 8);
  const int32_t space = tokenizer.token_id("\u0120").value();
  EXPECT_EQ(tokenizer.token_bytes(space), " ");
  const int32_t part = tokenizer.token_id("\u00ff").value();
  EXPECT_EQ(tokenizer.token_bytes(part), "\xff");
  EXPECT_EQ(tokenizer.token_bytes(tokenizer.token_id("two words").value()), "two words");
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_THROW(tokenizer.token_bytes(-1), DataError);
  expect_error<DataError>([&] { tokenizer.decode(std::vector<int32_t>{end, -1}); }, {"negative token id", "-1"});
  EXPECT_THROW(StreamingDecoder(tokenizer, false).push(-1), DataError);
}

TEST(Tokenizer, IdsOfAPaddedHeadStandForNothing) {
  const Tokenizer tokenizer = parse(gpt2_style());
  const int32_t space = tokenizer.token_id("\u0120").value();
  for (int32_t padding : {3008, 1 << 30}) {
    EXPECT_FALSE(tokenizer.is_special(padding));
    EXPECT_EQ(tokenizer.token_bytes(padding), "");
    for (const bool skip_special : {false, true}) {
      EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{space, padding, space}, skip_special), "  ");
      StreamingDecoder decoder(tokenizer, skip_special);
      EXPECT_EQ(decoder.push(padding), "");
      EXPECT_EQ(decoder.finish(), "");
    }
  }
}

TEST(Tokenizer, TextThatIsNotUtf8) {
  const Tokenizer tokenizer = arith();
  for (const char* bad : {"ab\xff", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\xaf", "\x80"})
    EXPECT_THROW(tokenizer.encode(bad), DataError);
  expect_error<DataError>([&] { tokenizer.encode("ab\xff"); }, {"not UTF-8", "byte 2"});
}

TEST(Tokenizer, EveryTextComesBack) {
  const Tokenizer tokenizer = parse(gpt2_style());
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint32_t i = 0, count = random() % 30; i < count; ++i) {
      constexpr uint32_t kLimits[] = {0x80, 0x250, 0x3000, 0xD800, 0x110000};
      const uint32_t code = random() % kLimits[random() % 5];
      const bool surrogate = code >= 0xD800 && code < 0xE000;
      if (code < 0x80)
        text += static_cast<char>(code);
      else if (code < 0x800)
        text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
      else if (code < 0x10000 && !surrogate)
        text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
                 static_cast<char>(0x80 | (code & 63))};
      else if (!surrogate)
        text += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
                 static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    const std::vector<int32_t> ids = tokenizer.encode(text);
    ASSERT_EQ(tokenizer.decode(ids), text);
    ASSERT_EQ(streamed(tokenizer, ids, false), text);
  }
}

TEST(Tokenizer, LongRunsAreNeitherSlowNorDeep) {
  const Tokenizer tokenizer = parse(gpt2_style());
  for (const char* unit : {"a", " ", "7", "\u00e9", "!", "\n", "<", "word", "<mask> "}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_FALSE(ids.empty());
    const bool swallows_spaces = std::string_view(unit) == "<mask> ";
    EXPECT_EQ(tokenizer.decode(ids) == text, !swallows_spaces) << unit;
  }
}

TEST(Tokenizer, SharedBetweenThreads) {
  const Tokenizer tokenizer = parse(gpt2_style());
  const std::vector<Json> cases = read_cases(kGoldens / "gpt2_style/cases.jsonl");
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < cases.size(); i += 2)
        if (cases[i]["variant"] == "plain" && cases[i].contains("text") &&
            tokenizer.encode(cases[i]["text"].get_ref<const std::string&>()) !=
                cases[i]["ids"].get<std::vector<int32_t>>())
          ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Tokenizer, PartsOfCharactersAreHeldBack) {
  const Tokenizer tokenizer = parse(gpt2_style());
  const auto byte = [&](const char* spelling) { return tokenizer.token_id(spelling).value(); };
  StreamingDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.push(byte("\u00e4")), "");  // E4 B8 AD is one character
  EXPECT_EQ(decoder.push(byte("\u00b8")), "");
  EXPECT_EQ(decoder.push(byte("a")), "\uFFFDa");  // and E4 B8 alone is one damaged place
  EXPECT_EQ(decoder.push(byte("\u00e4")), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
}

Tokenizer characters(const char* patch = "{}") {
  Json json = read_json((kGoldens / "styles/characters.json").string());
  json.merge_patch(Json::parse(patch));
  return parse(json);
}

TEST(Tokenizer, RunsOfByteTokensAreHeldBack) {
  const Tokenizer tokenizer = characters();
  const auto id = [&](const char* spelling) { return tokenizer.token_id(spelling).value(); };
  StreamingDecoder decoder(tokenizer, false);
  EXPECT_EQ(decoder.push(id("\u2581")), "");  // the space that was put in front of the text
  EXPECT_EQ(decoder.push(id("a")), "a");
  EXPECT_EQ(decoder.push(id("<0xE4>")), "");
  EXPECT_EQ(decoder.push(id("<0xB8>")), "");
  EXPECT_EQ(decoder.push(id("<0xAD>")), "");  // whole, but one more bad byte would spoil it
  EXPECT_EQ(decoder.push(id("\u2581")), "\u4e2d ");
  EXPECT_EQ(decoder.push(id("<0xE4>")), "");
  EXPECT_EQ(decoder.push(id("<0xB8>")), "");
  EXPECT_EQ(decoder.push(id("a")), "\uFFFD\uFFFDa");
  EXPECT_EQ(decoder.push(id("<0x41>")), "");
  EXPECT_EQ(decoder.finish(), "A");
  EXPECT_EQ(decoder.push(id("\u2581")), "");  // the next text
  EXPECT_EQ(tokenizer.token_bytes(id("<0xE4>")), "\xE4");
  EXPECT_EQ(tokenizer.token_bytes(id("\u2581")), " ");
  EXPECT_EQ(tokenizer.spelling(id("\u2581")), "\u2581");
  EXPECT_EQ(tokenizer.spelling(1 << 20), "");
}

TEST(Tokenizer, WhatMayBeStrippedIsHeldBack) {
  const Tokenizer tokenizer = characters(
      R"({"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"a","start":1,"stop":2}]}})");
  const int32_t a = tokenizer.token_id("a").value(), e = tokenizer.token_id("e").value();
  StreamingDecoder decoder(tokenizer, false);
  std::string text;
  for (const int32_t id : {a, a, a, a, e, a}) text += decoder.push(id) + "|";
  EXPECT_EQ(text + decoder.finish(), "|||a|aae||");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{a, a, a, a, e, a, a, a}), "aaaea");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{a}), "");
}

TEST(Tokenizer, SpansAreBytesOfTheInput) {
  using Spans = std::vector<Span>;
  const Tokenizer bytes = parse(gpt2_style());
  // Three tokens of one character share its span; a token takes the white space it strips.
  const Encoding encoding = bytes.encode_with_spans("a\u4e2d <mask>b");
  EXPECT_EQ(encoding.ids.size(), encoding.spans.size());
  EXPECT_EQ(encoding.spans.front(), (Span{0, 1}));
  EXPECT_EQ(encoding.spans[1], (Span{1, 4}));
  EXPECT_EQ(encoding.spans[encoding.spans.size() - 2], (Span{4, 11}));
  EXPECT_EQ(encoding.spans.back(), (Span{11, 12}));
  // What Prepend put in front comes from the first character; <s> from nowhere.
  EXPECT_EQ(characters().encode_with_spans("\u4e2d", true).spans, (Spans{{0, 0}, {0, 3}, {0, 3}, {0, 3}, {0, 3}}));
  EXPECT_EQ(bytes.encode_with_spans("").spans, Spans{});
}

TEST(Tokenizer, OrderOfUnknownsAndByteTokensIsTheLibrarys) {
  // An unknown waits behind the byte tokens that follow it: <0xE4> is missing, those of e-acute are not.
  const Tokenizer tokenizer = characters(R"({"normalizer":null,"model":{"vocab":{"<0xE4>":null,"x y":231}}})");
  EXPECT_EQ(tokenizer.encode("\u4e2d\u00e9a"),
            (std::vector<int32_t>{tokenizer.token_id("<0xC3>").value(), tokenizer.token_id("<0xA9>").value(),
                                  tokenizer.token_id("<unk>").value(), tokenizer.token_id("a").value()}));
}

// Seconds here, hours if a step were quadratic.
TEST(Tokenizer, MegabytesOfOneThing) {
  const Json variants = read_json((kGoldens / "styles/variants.json").string());
  for (const char* name : {"qwen", "o200k", "punctuation", "llama2", "metaspace_first_cut"}) {
    const Json& variant = variants[name];
    Json json = variant["base"] == "bytes" ? gpt2_style() : read_json((kGoldens / "styles/characters.json").string());
    json.merge_patch(variant["patch"]);
    const Tokenizer tokenizer = parse(json);
    for (const char* part : {" ", "7", "a", "A", " \n", "\u0301", "<|im_start|", "'"}) {
      SCOPED_TRACE(std::string(name) + ": " + part);
      std::string text;
      constexpr size_t kBytes = 1 << 17;
      while (text.size() < kBytes) text += part;
      const Encoding encoding = tokenizer.encode_with_spans(text);
      EXPECT_EQ(encoding.ids.size(), encoding.spans.size());
      EXPECT_FALSE(encoding.ids.empty());
    }
  }
}

}  // namespace
}  // namespace lockstep::text
