#include "text/loss_mask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"

namespace lockstep::text {
namespace {

constexpr const char* kPlain =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// A line break behind a tag goes with the tag.
constexpr const char* kBlocks =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content "
    "}}<|im_end|>{% endgeneration %}{{ '\n' }}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// As Qwen3's: an assistant's turn looks different once another follows.
constexpr const char* kForgetful =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}<think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class LossMask : public ::testing::Test {
 protected:
  LossMask() : tokenizer_(Tokenizer::load(LOCKSTEP_SOURCE_DIR "/tests/golden/tokenizer/gpt2_style")) {}

  static ChatInput conversation(const std::string& messages) { return {.messages = OrderedJson::parse(messages)}; }
  MaskedTokens mask(const char* source, const std::string& messages) const {
    return assistant_tokens(ChatTemplate::parse(source, "test"), tokenizer_, conversation(messages));
  }
  // What the tokens of weight `weight` say.
  std::string said(const MaskedTokens& tokens, float weight = 1) const {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < tokens.ids.size(); ++i)
      if (tokens.weights[i] == weight) ids.push_back(tokens.ids[i]);
    return tokenizer_.decode(ids);
  }

  Tokenizer tokenizer_;
};

constexpr const char* kTwoTurns =
    R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello you"},
        {"role": "user", "content": "And?"}, {"role": "assistant", "content": "The end.  "}])";

TEST_F(LossMask, TurnsAreTheSameFromBlocksAndFromPrefixes) {
  const MaskedTokens blocks = mask(kBlocks, kTwoTurns), derived = mask(kPlain, kTwoTurns);
  EXPECT_EQ(said(blocks), "Hello you<|im_end|>The end.  <|im_end|>");
  EXPECT_EQ(blocks.text, derived.text);
  EXPECT_EQ(blocks.ids, derived.ids);
  EXPECT_EQ(blocks.weights, derived.weights);
  EXPECT_EQ(blocks.spans.size(), blocks.ids.size());
}

TEST_F(LossMask, MessagesHaveWeights) {
  const char* messages =
      R"([{"role": "user", "content": "Hi", "weight": 0}, {"role": "assistant", "content": "A", "weight": 0},
          {"role": "user", "content": "x"}, {"role": "assistant", "content": "B", "weight": 0.5},
          {"role": "user", "content": "y"}, {"role": "assistant", "content": "C", "step_loss_mask": 0},
          {"role": "user", "content": "z"}, {"role": "assistant", "content": "D", "weight": null}])";
  for (const char* source : {kBlocks, kPlain}) {
    const MaskedTokens tokens = mask(source, messages);
    EXPECT_EQ(said(tokens), "D<|im_end|>");
    EXPECT_EQ(said(tokens, 0.5f), "B<|im_end|>");
  }
  // The template never sees the keys.
  const char* whole = "{% for m in messages %}{{ m | tojson }}<|im_end|>{% endfor %}";
  EXPECT_EQ(
      mask(whole, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 2}])").text,
      R"({"role": "user", "content": "a"}<|im_end|>{"role": "assistant", "content": "b"}<|im_end|>)");
}

TEST_F(LossMask, WeightsThatMeanNothingAreErrors) {
  const auto fails = [&](const char* source, const std::string& messages, std::initializer_list<const char*> parts) {
    testing::expect_error<DataError>([&] { mask(source, messages); }, parts);
  };
  fails(kPlain, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": -1}])",
        {"weight is not one", "messages[1].weight", "-1"});
  fails(kPlain, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": "1"}])",
        {"weight is not one", "messages[1].weight"});
  fails(kPlain, R"([{"role": "user", "content": "a", "weight": 2}, {"role": "assistant", "content": "b"}])",
        {"only turns of the assistant", "messages[0].weight"});
  const char* one_block =
      "{% for m in messages %}{{ m.content }}{% if loop.first %}{% generation %}<|im_end|>{% endgeneration %}"
      "{% endif %}{% endfor %}";
  fails(one_block, R"([{"role": "assistant", "content": "b", "weight": 0}, {"role": "assistant", "content": "c"}])",
        {"cannot be matched", "1 blocks", "2, one for each"});
  testing::expect_error<DataError>(
      [&] {
        render_tokens(
            ChatTemplate::parse(kPlain, "test"), tokenizer_,
            conversation(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}])"));
      },
      {"weights of messages", "messages[1]", "RowOptions::loss_mask assistant"});
}

TEST_F(LossMask, ATemplateThatChangesItsMindNamesTheTurn) {
  EXPECT_EQ(said(mask(kForgetful, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])")),
            "<think>b<|im_end|>");
  testing::expect_error<DataError>(
      [&] { mask(kForgetful, kTwoTurns); },
      {"renders the beginning of the conversation differently", "messages[1]", "<think>", "{% generation %}"});
  testing::expect_error<DataError>([&] { mask(kPlain, R"([{"role": "assistant", "content": "b"}])"); },
                                   {"messages[0]", "begins with the assistant"});
}

TEST_F(LossMask, CharactersOfSeveralTokensAndBlocksWithoutText) {
  const char* messages =
      R"([{"role": "user", "content": "né 👩‍👧"}, {"role": "assistant", "content": "日本 👩‍👧"}, {"role": "user", "content": "ok"},
          {"role": "assistant", "content": ""}])";
  for (const char* source : {kBlocks, kPlain})
    EXPECT_EQ(said(mask(source, messages)), "日本 👩‍👧<|im_end|><|im_end|>");
  // transformers counts the last character by the first token that holds it.
  const char* open =
      "{% for m in messages %}<|im_start|>{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>{% endfor %}";
  const MaskedTokens cut = mask(open, R"([{"role": "assistant", "content": "ab 👩"}])");
  ASSERT_GT(tokenizer_.encode("👩").size(), 1u);
  const auto marked = static_cast<size_t>(std::count(cut.weights.begin(), cut.weights.end(), 1.0f));
  EXPECT_EQ(marked, cut.ids.size() - 2 - (tokenizer_.encode("👩").size() - 1));
}

TEST_F(LossMask, WholeConversationsAndPrompts) {
  const ChatTemplate chat = ChatTemplate::parse(kPlain, "test");
  const ChatInput both = conversation(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])");
  ChatInput prompt = conversation(R"([{"role": "user", "content": "a"}])");
  prompt.add_generation_prompt = true;
  const MaskedTokens all = render_tokens(chat, tokenizer_, both), asked = render_tokens(chat, tokenizer_, prompt);
  EXPECT_EQ(std::count(all.weights.begin(), all.weights.end(), 1.0f), static_cast<int64_t>(all.ids.size()));
  EXPECT_EQ(common_prefix_length(all.ids, asked.ids), asked.ids.size());
  EXPECT_EQ(common_prefix_length({}, asked.ids), 0u);
  EXPECT_EQ(common_prefix_length({1, 2, 3}, {1, 2, 4, 5}), 2u);
}

}  // namespace
}  // namespace lockstep::text
