// tokenizer.json files that are not supported, odd or damaged.
#include <random>

#include "core/error.h"
#include "core/fs.h"
#include "core/json.h"
#include "support/temp_directory.h"
#include "text/tokenizer.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;

Json gpt2_style() {
  return read_json(LOCKSTEP_SOURCE_DIR "/tests/golden/tokenizer/gpt2_style/tokenizer.json");
}

Tokenizer parse(const Json& json) {
  return Tokenizer::parse(json.dump(), "DIR/tokenizer.json");
}

// A component of another kind, and the words that must be in the message.
void expect_refused(const char* patch, std::initializer_list<const char*> parts) {
  Json json = gpt2_style();
  json.merge_patch(Json::parse(patch));
  expect_error<FormatError>([&] { parse(json); }, parts);
}

TEST(TokenizerFile, OtherComponentsAreNamed) {
  expect_refused(R"({"normalizer":{"type":"BertNormalizer"}})", {"DIR/tokenizer.json: normalizer", "BertNormalizer"});
  expect_refused(R"({"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]}})",
                 {"normalizer: Sequence", "Nmt"});
  expect_refused(R"({"normalizer":{"type":"Sequence"}})", {"normalizer: Sequence: normalizers", "a list"});
  expect_refused(R"({"normalizer":{"type":"Replace","pattern":{"Glob":"x"},"content":""}})",
                 {"Replace: pattern", "Glob"});
  expect_refused(R"({"normalizer":{"type":"Replace","pattern":{"String":""},"content":""}})", {"Replace: pattern"});
  expect_refused(R"({"normalizer":[]})", {"normalizer", "an object with a type"});
  expect_refused(R"({"pre_tokenizer":{"type":"UnicodeScripts"}})", {": pre_tokenizer", "UnicodeScripts"});
  expect_refused(R"({"pre_tokenizer":{"type":"Split","pattern":{"String":" "}}})", {"pre_tokenizer", "behavior"});
  expect_refused(R"({"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"Dropped"}})",
                 {"Split: behavior", "Dropped"});
  expect_refused(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{Greek}"},"behavior":"Isolated"}})",
                 {"regular expression", "\\p{Greek}"});
  expect_refused(R"({"pre_tokenizer":{"type":"Metaspace","replacement":"ab"}})", {"replacement", "one character"});
  expect_refused(R"({"pre_tokenizer":{"type":"Metaspace","prepend_scheme":"last"}})", {"prepend_scheme", "last"});
  expect_refused(R"({"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}})",
                 {"Digits after ByteLevel"});
  expect_refused(R"({"post_processor":{"type":"BertProcessing"}})", {": post_processor", "BertProcessing"});
  expect_refused(R"({"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}}]}})",
                 {"post_processor", "special_tokens"});
  expect_refused(R"({"decoder":{"type":"WordPiece"}})", {": decoder", "WordPiece"});
  expect_refused(R"({"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}})",
                 {": decoder", "ByteFallback behind Fuse"});
  expect_refused(R"({"model":{"type":"Unigram"}})", {": model: type", "Unigram"});
  expect_refused(R"({"model":{"dropout":0.1}})", {": model: dropout"});
  expect_refused(R"({"model":{"byte_fallback":true,"vocab":{"\u0100":null,"x y":191}}})", {": model: byte_fallback"});
  expect_refused(R"({"model":{"continuing_subword_prefix":"##"}})", {": model: continuing_subword_prefix", "##"});
  expect_refused(R"({"model":{"end_of_word_suffix":"</w>"}})", {": model: end_of_word_suffix"});
  expect_refused(R"({"model":{"unk_token":"nowhere"}})", {": model: unk_token", "nowhere"});
}

TEST(TokenizerFile, HarmlessComponentsPass) {
  for (const char* patch :
       {R"({"post_processor":null})", R"({"pre_tokenizer":null})", R"({"decoder":null})",
        R"({"truncation":{"max_length":5},"padding":{"strategy":"BatchLongest"}})",
        R"({"model":{"byte_fallback":true}})",
        R"({"model":{"continuing_subword_prefix":"","end_of_word_suffix":"","dropout":0.0,"unk_token":""}})"}) {
    Json json = gpt2_style();
    json.merge_patch(Json::parse(patch));
    EXPECT_NO_THROW(parse(json)) << patch;
  }
}

TEST(TokenizerFile, MalformedTablesAreNamed) {
  expect_refused(R"({"model":{"vocab":{"x y":-1}}})", {"vocab: x y", "-1"});
  expect_refused(R"({"model":{"vocab":{"x y":"7"}}})", {"vocab: x y"});
  expect_refused(R"({"model":{"vocab":{"x y":5}}})", {"vocab", "share an id"});
  expect_refused(R"({"model":{"vocab":{"x y":99999999999}}})", {"vocab: x y", "99999999999"});
  expect_refused(R"({"model":{"vocab":[]}})", {"vocab", "an object"});
  expect_refused(R"({"model":{"vocab":null}})", {"vocab"});
  expect_refused(R"({"model":{"merges":{}}})", {"merges", "a list"});
  expect_refused(R"({"model":{"merges":["a"]}})", {"merges", "\"a\""});
  expect_refused(R"({"model":{"merges":["a b c"]}})", {"merges", "a b c"});
  expect_refused(R"({"model":{"merges":[["a"]]}})", {"merges", "[\"a\"]"});
  expect_refused(R"({"model":{"merges":[["a", "nowhere"]]}})", {"merges", "nowhere"});
  expect_refused(R"({"model":null})", {"model"});
  expect_refused(R"({"added_tokens":{}})", {"added_tokens", "a list"});
  expect_refused(R"({"added_tokens":[{"content":"x"}]})", {"added_tokens", "id"});
  expect_refused(R"({"added_tokens":[{"id":2998}]})", {"added_tokens", "content"});
  expect_refused(R"({"added_tokens":[{"id":2998,"content":""}]})", {"added_tokens", "empty"});
  expect_refused(R"({"added_tokens":[{"id":7,"content":"<|im_end|>"}]})", {"added_tokens", "<|im_end|>"});
  expect_refused(R"({"added_tokens":[{"id":4000,"content":"<new>"}]})", {"added_tokens", "<new> = 4000", "3000"});
  expect_error<FormatError>([] { Tokenizer::parse("{", "DIR/tokenizer.json"); },
                            {"DIR/tokenizer.json", "invalid JSON"});
  expect_error<FormatError>([] { Tokenizer::parse("[]", "DIR/tokenizer.json"); }, {"DIR/tokenizer.json", "an object"});
  const testing::TempDirectory dir;
  expect_error<FormatError>([&] { Tokenizer::load(dir.path().string()); }, {"no tokenizer", dir.path().c_str()});
}

TEST(TokenizerFile, DamageIsAnErrorOrATokenizer) {
  const std::string whole =
      R"({"added_tokens":[{"id":3,"content":"<e>","lstrip":true,"special":true}],"pre_tokenizer":{"type":"Sequence","pretokenizers":)"
      R"([{"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false}]},"decoder":{"type":"ByteLevel"},)"
      R"("model":{"type":"BPE","unk_token":"a","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]}})";
  EXPECT_EQ(Tokenizer::parse(whole, "x").encode("abc <e>"), (std::vector<int32_t>{2, 0, 3}));
  int parsed = 0;
  const auto attempt = [&](const std::string& damaged) {
    try {
      const Tokenizer tokenizer = Tokenizer::parse(damaged, "x");
      ++parsed;
      tokenizer.decode(tokenizer.encode("abab 12 <e> b\u00e9"));
    } catch (const FormatError&) {
    }
  };
  for (size_t size = 0; size < whole.size(); ++size) attempt(whole.substr(0, size));
  EXPECT_EQ(parsed, 0);
  for (size_t bit = 0; bit < whole.size() * 8; bit += 5) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    attempt(flipped);
  }
  EXPECT_GT(parsed, 0);
}

}  // namespace
}  // namespace lockstep::text
