#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/gguf/encode.h"
#include "checkpoint/gguf/names.h"
#include "checkpoint/gguf/tokenizer.h"
#include "checkpoint/gguf/writer.h"
#include "core/error.h"
#include "core/random.h"
#include "support/gguf_reader.h"
#include "support/temp_directory.h"

namespace lockstep::checkpoint {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::GgufReader;
using lockstep::testing::TempDirectory;

float value_at(int64_t i) {
  return 4 * uniform01(philox(3, {static_cast<uint32_t>(i), 0, 0, 0})[0]) - 2;
}

GgufTensor matrix(const std::string& name, GgufType type, int64_t rows, int64_t cols) {
  return {.name = name, .type = type, .rows = rows, .cols = cols, .read = [cols](int64_t row, std::span<float> out) {
            for (size_t i = 0; i < out.size(); ++i) out[i] = value_at(row * cols + static_cast<int64_t>(i));
          }};
}

GgufTensor vector(const std::string& name, const std::vector<float>& values) {
  return {.name = name,
          .rows = 1,
          .cols = static_cast<int64_t>(values.size()),
          .vector = true,
          .read = [values](int64_t, std::span<float> out) { std::ranges::copy(values, out.begin()); }};
}

void write(const fs::Path& file, const std::vector<GgufTensor>& tensors, const GgufMetadata& metadata = {}) {
  Stream stream({.threads = 2});
  write_gguf(file, metadata, tensors, stream, [](double) {});
}

TEST(Gguf, FilesAreReadBackAsTheyWereWritten) {
  const TempDirectory dir;
  GgufMetadata metadata;
  metadata.add_string("general.architecture", "llama");
  metadata.add_u32("a.count", 4000000000u);
  metadata.add_f32("a.number", 0.1f);
  metadata.add_bool("a.yes", true);
  metadata.add_bool("a.no", false);
  metadata.add_strings("texts", std::vector<std::string>{"", "x", "\xc3\xa4 b"});
  metadata.add_i32s("numbers", std::vector<int32_t>{-1, 0, 2147483647});
  write(dir / "x.gguf",
        {matrix("first", GgufType::f32, 3, 5), vector("odd", {1, 2, 3}), matrix("half", GgufType::f16, 7, 9),
         matrix("brain", GgufType::bf16, 2, 3), matrix("blocks", GgufType::q8_0, 5, 64)},
        metadata);
  const GgufReader file((dir / "x.gguf").string());
  EXPECT_EQ(file.strings.at("general.architecture"), "llama");
  EXPECT_EQ(file.numbers.at("a.count"), 4000000000.0);
  EXPECT_EQ(file.numbers.at("a.number"), 0.1f);
  EXPECT_EQ(file.numbers.at("a.yes"), 1);
  EXPECT_EQ(file.numbers.at("a.no"), 0);
  EXPECT_EQ(file.string_lists.at("texts"), (std::vector<std::string>{"", "x", "\xc3\xa4 b"}));
  EXPECT_EQ(file.integer_lists.at("numbers"), (std::vector<int32_t>{-1, 0, 2147483647}));
  EXPECT_EQ(file.kinds.at("a.count"), 4u);

  ASSERT_EQ(file.tensors.size(), 5u);
  EXPECT_EQ(file.tensors.at("first").shape, (std::vector<uint64_t>{5, 3}));
  EXPECT_EQ(file.tensors.at("odd").shape, (std::vector<uint64_t>{3}));
  uint64_t end = 0;
  for (const char* name : {"first", "odd", "half", "brain", "blocks"}) {
    const GgufReader::Tensor& tensor = file.tensors.at(name);
    EXPECT_EQ(tensor.offset, (end + 31) / 32 * 32) << name;
    end = tensor.offset + GgufReader::tensor_bytes(tensor);
  }
  EXPECT_EQ(file.size(), file.data_place() + (end + 31) / 32 * 32);

  EXPECT_EQ(file.values("odd"), (std::vector<float>{1, 2, 3}));
  const auto expect_near = [&](const char* name, double relative, double absolute) {
    const std::vector<float> values = file.values(name);
    for (size_t i = 0; i < values.size(); ++i) {
      const float wanted = value_at(static_cast<int64_t>(i));
      EXPECT_LE(std::abs(values[i] - wanted), relative * std::abs(wanted) + absolute) << name << " " << i;
    }
  };
  expect_near("first", 0, 0);
  expect_near("half", 0x1p-11, 0x1p-24);
  expect_near("brain", 0x1p-8, 0);
  expect_near("blocks", 0, 2.0 / 127 * (0.5 + 127 * 0x1p-11));  // q is rounded, and d to f16
}

// A value is d q: q are the 127 steps of either sign nearest to x / (max |x| / 127), d is that quotient as f16.
TEST(Gguf, BlocksOfQ8AreThoseOfTheDefinition) {
  std::vector<float> row;
  for (int64_t i = 0; i < 64; ++i) row.push_back(value_at(i) * std::exp2(static_cast<float>(i / 32 * -9)));
  row[5] = 3.5f, row[40] = -0.25f;
  for (int i = 0; i < 32; ++i) row.push_back(0);        // a block of zeros
  for (int i = 0; i < 32; ++i) row.push_back(1e-30f);   // below every f16
  for (int i = 0; i < 32; ++i) row.push_back(i - 127);  // d = 1: whole numbers are exact
  std::string bytes(gguf_row_bytes(GgufType::q8_0, 160), '\x55');
  ASSERT_EQ(bytes.size(), 5u * 34u);
  ASSERT_TRUE(gguf_encode_row(bytes.data(), GgufType::q8_0, row));
  for (size_t block = 0; block < 5; ++block) {
    double largest = 0;
    for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(static_cast<double>(row[block * 32 + i])));
    const double d = largest / 127;
    const float stored = GgufReader::half(GgufReader::number_at<uint16_t>(bytes, block * 34));
    EXPECT_LE(std::abs(stored - d), d * 0x1p-11 + 0x1p-25) << block;
    int most = 0;
    for (size_t i = 0; i < 32; ++i) {
      const int q = GgufReader::number_at<int8_t>(bytes, block * 34 + 2 + i);
      most = std::max(most, std::abs(q));
      EXPECT_LE(std::abs(q * d - row[block * 32 + i]), d * 0.5 * (1 + 1e-5)) << block << " " << i;
      if (block == 4) {
        EXPECT_EQ(q, static_cast<int>(i) - 127);
      }
    }
    EXPECT_EQ(most, block == 2 ? 0 : 127) << block;
  }
}

TEST(Gguf, ValuesThatDoNotFitAreRefused) {
  const TempDirectory dir;
  const auto with = [&](float value, GgufType type) {
    return [&dir, value, type] {
      write(dir / "x.gguf", {{.name = "w", .type = type, .rows = 2, .cols = 32, .read = [value](int64_t row, auto out) {
                                std::ranges::fill(out, row == 1 ? value : 1);
                              }}});
    };
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_error<FormatError>(with(70000, GgufType::f16), {"w, row 1", "f16"});
  expect_error<FormatError>(with(3.4e38f, GgufType::bf16), {"bf16"});
  expect_error<FormatError>(with(1e9f, GgufType::q8_0), {"q8_0"});
  expect_error<FormatError>(with(kInfinity, GgufType::q8_0), {"q8_0"});
  expect_error<FormatError>(with(std::nanf(""), GgufType::q8_0), {"q8_0"});
  EXPECT_EQ(dir.entries(), 0);
  with(kInfinity, GgufType::f16)();  // what the model has stays
  EXPECT_EQ(GgufReader((dir / "x.gguf").string()).values("w").back(), kInfinity);
}

TEST(Gguf, NothingIsLeftOfAFileThatIsNotFinished) {
  const TempDirectory dir;
  dir.write("x.gguf", "what was there");
  Stream stream({.threads = 1});
  const std::vector<GgufTensor> tensors = {matrix("w", GgufType::f32, 4000, 1000)};
  std::vector<double> told;
  expect_error<Cancelled>(
      [&] {
        write_gguf(dir / "x.gguf", {}, tensors, stream, [&](double done) {
          told.push_back(done);
          if (done > 0.5) throw Cancelled({.what = "enough"});
        });
      },
      {"enough"});
  EXPECT_EQ(fs::read_file(dir / "x.gguf"), "what was there");
  EXPECT_EQ(dir.entries(), 1);
  EXPECT_GE(told.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(told));
}

TEST(Gguf, ImpossibleTensorsAndKeysAreRefused) {
  const TempDirectory dir;
  expect_error<FormatError>([&] { write(dir / "x", {matrix("w", GgufType::q8_0, 2, 33)}); },
                            {"w", "33 values as q8_0"});
  expect_error<FormatError>([&] { write(dir / "x", {vector("w", {1}), vector("w", {2})}); }, {"two tensors", "w"});
  GgufMetadata metadata;
  metadata.add_u32("a", 1);
  expect_error<FormatError>([&] { metadata.add_bool("a", true); }, {"twice", "a"});
}

TEST(Gguf, NamesOfModulesAndTensors) {
  EXPECT_EQ(gguf_tensor("model.embed_tokens.weight").name, "token_embd.weight");
  EXPECT_EQ(gguf_tensor("model.layers.12.self_attn.q_proj.bias").name, "blk.12.attn_q.bias");
  EXPECT_TRUE(gguf_tensor("model.layers.12.self_attn.k_proj.weight").rotary);
  EXPECT_FALSE(gguf_tensor("model.layers.12.self_attn.v_proj.weight").rotary);
  EXPECT_FALSE(gguf_tensor("model.layers.0.self_attn.q_norm.weight").rotary);
  EXPECT_EQ(gguf_module("model.layers.0.mlp.down_proj").name, "blk.0.ffn_down");
  for (const char* name : {"model.layers.x.mlp.down_proj", "model.layers.0", "model.layers.0.mlp.router", "lm_heads"})
    expect_error<FormatError>([&] { gguf_module(name); }, {name});
  EXPECT_STREQ(gguf_architecture("mistral", "config.json").name, "llama");
  expect_error<FormatError>([] { gguf_architecture("gpt_neox", "config.json"); }, {"gpt_neox", "config.json"});
  // Two heads of six entries.
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) rows.push_back(gguf_source_row(row, 6));
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
}

Json byte_level(bool with_expression) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", with_expression}};
}

Json split(const char* expression) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json sequence(std::initializer_list<Json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", Json(steps)}};
}

constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST(Gguf, PreTokenizersHaveNamesOrAreRefused) {
  const auto name = [](const Json& pre, const Json& normalizer = nullptr) {
    return gguf_pre_tokenizer({{"pre_tokenizer", pre}, {"normalizer", normalizer}}, "tokenizer.json");
  };
  EXPECT_EQ(name(byte_level(true)), "gpt-2");
  EXPECT_EQ(name(sequence({{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)})), "smollm");
  EXPECT_EQ(name(sequence({split(kQwen2), byte_level(false)}), {{"type", "NFC"}}), "qwen2");
  std::string llama = kQwen2;
  llama.replace(llama.find("|\\p{N}|"), 7, "|\\p{N}{1,3}|");
  EXPECT_EQ(name(sequence({split(llama.c_str()), byte_level(false)})), "llama-bpe");

  const auto refused = [&](const Json& pre, const Json& normalizer = nullptr) {
    expect_error<FormatError>([&] { name(pre, normalizer); }, {"tokenizer.json"});
  };
  refused(nullptr);
  refused({{"type", "Metaspace"}});
  refused(sequence({split("\\p{L}+"), byte_level(false)}));
  refused(sequence({split(kQwen2), byte_level(true)}));
  refused(sequence({byte_level(false), split(kQwen2)}));
  refused(sequence({{{"type", "Digits"}, {"individual_digits", false}}, byte_level(true)}));
  Json inverted = split(kQwen2), prefixed = byte_level(true);
  inverted["invert"] = true;
  prefixed["add_prefix_space"] = true;
  refused(sequence({inverted, byte_level(false)}));
  refused(prefixed);
  refused(byte_level(true), {{"type", "Lowercase"}});
}

const char* const kVocabulary = R"("vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]])";

std::string tokenizer_text(const std::string& model, const std::string& more = "") {
  return R"({"model": {"type": "BPE", )" + model +
         R"(}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "added_tokens": [{"id": 3, "content": "<s>", "special": true}, {"id": 4, "content": "</s>", "special": true},
                     {"id": 5, "content": "<tool>", "special": false}, {"id": 9, "content": "<far>", "special": true}])" +
         more + "}";
}

constexpr const char* kTemplate =
    R"(, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})";

TEST(Gguf, TokenizersBecomeKeys) {
  const TempDirectory dir;
  GgufMetadata metadata;
  const std::vector<std::string> notes =
      add_gguf_tokenizer(metadata, dir.write("tokenizer.json", tokenizer_text(kVocabulary, kTemplate)),
                         {.vocab_size = 8,
                          .end_ids = {2, 4},
                          .special_tokens = {{"eos_token", "</s>"}, {"pad_token", "<none>"}},
                          .chat_template = "{{ messages }}"});
  write(dir / "x.gguf", {}, metadata);
  const GgufReader file((dir / "x.gguf").string());
  EXPECT_EQ(file.strings.at("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(file.strings.at("tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(file.string_lists.at("tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a", "b", "ab", "<s>", "</s>", "<tool>", "[PAD6]", "[PAD7]"}));
  EXPECT_EQ(file.integer_lists.at("tokenizer.ggml.token_type"), (std::vector<int32_t>{1, 1, 1, 3, 3, 4, 5, 5}));
  EXPECT_EQ(file.string_lists.at("tokenizer.ggml.merges"), (std::vector<std::string>{"a b"}));
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.bos_token_id"), 3);
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.eos_token_id"), 4);
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.eot_token_id"), 2);
  EXPECT_FALSE(file.numbers.contains("tokenizer.ggml.padding_token_id"));
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.add_bos_token"), 1);
  EXPECT_EQ(file.numbers.at("tokenizer.ggml.add_eos_token"), 0);
  EXPECT_EQ(file.strings.at("tokenizer.chat_template"), "{{ messages }}");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("1 tokens of the tokenizer have no row"), std::string::npos);
}

TEST(Gguf, TokenizersThatLlamaCppDoesNotKnowAreRefused) {
  const TempDirectory dir;
  const auto refused = [&](const std::string& text, std::initializer_list<const char*> parts) {
    const fs::Path file = dir.write("tokenizer.json", text);
    expect_error<FormatError>(
        [&] {
          GgufMetadata metadata;
          add_gguf_tokenizer(metadata, file, {.vocab_size = 8});
        },
        parts);
  };
  const std::string vocabulary = kVocabulary;
  refused(tokenizer_text(vocabulary + R"(, "byte_fallback": true)"), {"byte_fallback"});
  refused(tokenizer_text(vocabulary + R"(, "continuing_subword_prefix": "##")"), {"continuing_subword_prefix"});
  refused(tokenizer_text(R"("vocab": {"a": -1}, "merges": [])"), {"impossible id", "a"});
  refused(tokenizer_text(R"("vocab": {"a": 0}, "merges": ["a b c"])"), {"merges"});
  refused(tokenizer_text(R"("vocab": {"a": 0}, "merges": [["a"]])"), {"merges"});
  refused(tokenizer_text(vocabulary, R"(, "post_processor": {"type": "BertProcessing"})"), {"post_processor"});
  refused(tokenizer_text(vocabulary, R"(, "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>"}}, {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]})"),
          {"one token before"});
  refused(R"({"model": {"type": "Unigram"}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}})",
          {"Unigram"});
  refused("[]", {"tokenizer.json"});
}

}  // namespace
}  // namespace lockstep::checkpoint
