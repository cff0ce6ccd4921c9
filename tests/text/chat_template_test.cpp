#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"

namespace lockstep::text {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::TempDirectory;

OrderedJson messages(const char* json) {
  return OrderedJson::parse(json);
}
const OrderedJson kTurns =
    messages(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " Yes "}])");
constexpr const char* kPlain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

std::string render(const ChatTemplate& chat, ChatInput input) {
  return chat.render(input).text;
}

TEST(ChatTemplate, VariablesOfARendering) {
  const auto chat = ChatTemplate::parse(
      "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ enable }}", "t",
      {{"bos_token", "<s>"}});
  EXPECT_EQ(render(chat, {.messages = kTurns}), "<s>TrueTrueFalse");
  EXPECT_EQ(render(chat, {.messages = kTurns,
                          .tools = OrderedJson::array(),
                          .kwargs = {{"enable", 1}, {"bos_token", "<b>"}},
                          .add_generation_prompt = true}),
            "<b>FalseTrueTrue1");
  expect_error<ConfigError>(
      [&] {
        chat.render({.messages = kTurns, .tools = {}, .kwargs = {{"messages", 1}}});
      },
      {"messages"});
  expect_error<DataError>([&] { chat.render({.messages = OrderedJson::array()}); }, {"at least one message"});
}

TEST(ChatTemplate, KeysKeepTheirOrder) {
  const auto chat = ChatTemplate::parse("{{ messages[0] | tojson }}", "t");
  EXPECT_EQ(render(chat, {.messages = messages(R"([{"z": 1.0, "a": {"y": [], "b": null}, "é": "</"}])")}),
            R"({"z": 1.0, "a": {"y": [], "b": null}, "é": "</"})");
}

TEST(ChatTemplate, TheFinalMessageCanBeContinued) {
  const auto plain = ChatTemplate::parse(kPlain, "t");
  EXPECT_EQ(render(plain, {.messages = kTurns, .continue_final_message = true}), "<user>Hi<assistant> Yes ");
  const auto trimming = ChatTemplate::parse("{% for m in messages %}[{{ m.content|trim }}]{% endfor %}", "t");
  EXPECT_EQ(render(trimming, {.messages = kTurns, .continue_final_message = true}), "[Hi][Yes");
  const auto parts = ChatTemplate::parse("{{ messages[0].content[0].text }}|end", "t");
  EXPECT_EQ(render(parts, {.messages = messages(R"([{"content": [{"text": "abc"}, {"type": "image"}]}])"),
                           .continue_final_message = true}),
            "abc");
  const auto silent = ChatTemplate::parse("content", "t");
  expect_error<DataError>([&] { silent.render({.messages = kTurns, .continue_final_message = true}); },
                          {"cannot be continued"});
}

TEST(ChatTemplate, ADirectoryIsReadAsTransformersReadsIt) {
  TempDirectory dir;
  const auto load = [&] { return ChatTemplate::load(dir.path().string()); };
  EXPECT_FALSE(load().has_value());
  dir.write("tokenizer_config.json", R"({"chat_template": "one {{ bos_token }}{{ eos_token }}", "bos_token": "<s>",
                                        "eos_token": {"content": "</s>", "lstrip": false}, "pad_token": null})");
  EXPECT_EQ(render(*load(), {.messages = kTurns}), "one <s></s>");
  dir.write("special_tokens_map.json", R"({"eos_token": "<e>"})");
  EXPECT_EQ(render(*load(), {.messages = kTurns}), "one <s><e>");
  dir.write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "usual"},
                                        {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "{% x %}"}]})");
  EXPECT_EQ(render(*load(), {.messages = kTurns}), "usual");
  EXPECT_EQ(render(*load(), {.messages = kTurns, .tools = OrderedJson::array()}), "tools");
  dir.write("chat_template.jinja", "file");
  EXPECT_EQ(render(*load(), {.messages = kTurns, .tools = OrderedJson::array()}), "file");
  dir.write("additional_chat_templates/tool_use.jinja", "{% if %}");
  EXPECT_EQ(render(*load(), {.messages = kTurns}), "file");
  expect_error<FormatError>([&] { load()->render({.messages = kTurns, .tools = OrderedJson::array()}); },
                            {"tool_use.jinja line 1"});
  std::filesystem::remove(dir / "chat_template.jinja");
  expect_error<FormatError>([&] { load()->render({.messages = kTurns}); }, {"none is the default", "tool_use"});
}

TEST(ChatTemplate, SaysWhetherItMarksGeneration) {
  EXPECT_TRUE(ChatTemplate::parse("{%- generation -%}x{% endgeneration %}", "t").marks_generation());
  EXPECT_FALSE(ChatTemplate::parse("x", "t").marks_generation());
  EXPECT_TRUE(ChatTemplate::parse("{%+\n\tgeneration %}{% endgeneration %}", "t").marks_generation());
  EXPECT_TRUE(ChatTemplate::parse("{# {% #}{%generation+%}{% endgeneration %}", "t").marks_generation());
  EXPECT_FALSE(ChatTemplate::parse("{# {% generations %} {% - generation %} generation %}{% generation #}", "t")
                   .marks_generation());
}

// std::regex calls itself once for each of them.
TEST(ChatTemplate, ALongRunOfSpacesBehindATagIsLookedThrough) {
  const std::string spaces(1'000'000, ' ');
  EXPECT_FALSE(ChatTemplate::parse("{%" + spaces + "set x = 1 %}", "t").marks_generation());
  EXPECT_TRUE(ChatTemplate::parse("{%" + spaces + "generation %}{% endgeneration %}", "t").marks_generation());
}

// Both texts come with a request: the product of their lengths would be minutes.
TEST(ChatTemplate, TheFinalMessageIsLookedForInLinearTime) {
  const auto chat = ChatTemplate::parse("{% for m in messages %}{{ m.content }}{% endfor %}", "t");
  const std::string run(3'000'000, 'a');
  const OrderedJson turns = {{{"role", "user"}, {"content", run}},
                             {{"role", "assistant"}, {"content", run.substr(0, 1'000'000) + "b"}}};
  EXPECT_EQ(render(chat, {.messages = turns, .continue_final_message = true}).size(), 4'000'001u);
}

TEST(ChatTemplate, RenderingHasLimits) {
  const auto chat =
      ChatTemplate::parse("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "t");
  expect_error<FormatError>([&] { chat.render({.messages = kTurns}, {.max_steps = 100'000}); }, {"too many steps"});
  const RenderLimits past{.deadline = std::chrono::steady_clock::now()};
  expect_error<FormatError>([&] { chat.render({.messages = kTurns}, past); }, {"too much time"});
  const RenderLimits soon{.max_steps = int64_t{1} << 60,
                          .deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20)};
  expect_error<FormatError>([&] { chat.render({.messages = kTurns}, soon); }, {"too much time"});
}

TEST(ChatTemplate, ManyThreadsRenderOneTemplate) {
  const auto chat = ChatTemplate::parse(kPlain, "t");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) EXPECT_EQ(render(chat, {.messages = kTurns}), "<user>Hi<assistant> Yes ");
    });
  for (std::thread& thread : threads) thread.join();
}

// The template of Qwen3 itself, where the tokenizers are at hand.
TEST(ChatTemplate, Qwen3ThinkingSwitch) {
  const std::string data = LOCKSTEP_TEST_DATA;
  if (data.empty()) GTEST_SKIP() << "LOCKSTEP_TEST_DATA is not set";
  const auto chat = ChatTemplate::load(data + "/tokenizers/qwen3");
  ASSERT_TRUE(chat.has_value());
  const OrderedJson question = messages(R"([{"role": "user", "content": "Hi"}])");
  EXPECT_EQ(render(*chat, {.messages = question, .tools = {}, .kwargs = {}, .add_generation_prompt = true}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(
      render(
          *chat,
          {.messages = question, .tools = {}, .kwargs = {{"enable_thinking", false}}, .add_generation_prompt = true}),
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
}

}  // namespace
}  // namespace lockstep::text
