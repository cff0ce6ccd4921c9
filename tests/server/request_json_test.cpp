// From request bodies to what the engine is asked: fields, defaults, ranges, refusals.
#include <gtest/gtest.h>

#include "server/protocol/api_error.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/completion_request.h"
#include "server/protocol/json_text.h"
#include "server/protocol/lora_request.h"
#include "server/protocol/sglang_request.h"
#include "server/protocol/tokens_request.h"

namespace lockstep::server {
namespace {

const SamplingRules kRules{.vocab_size = 100, .end_tokens = {0, 7}};

OrderedJson body(std::string_view text) {
  return OrderedJson::parse(text);
}
CompletionRequest completion(std::string_view more, const SamplingRules& rules = kRules) {
  return parse_completion(body("{\"prompt\": \"x\"" + std::string(more.empty() ? "" : ", ") + std::string(more) + "}"),
                          rules, false);
}
ChatRequest chat(std::string_view more) {
  return parse_chat(body("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]" +
                         std::string(more.empty() ? "" : ", ") + std::string(more) + "}"),
                    kRules, false);
}
SglangRequest sglang(std::string_view more) {
  return parse_sglang(body("{\"text\": \"x\"" + std::string(more.empty() ? "" : ", ") + std::string(more) + "}"),
                      kRules);
}

// The field that a 400 names; empty: it was read.
template <class Parse>
std::string refused(const Parse& parse) {
  try {
    parse();
    return "";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400) << error.what();
    EXPECT_FALSE(error.param.empty()) << error.what();
    return error.param;
  }
}

TEST(Completion, Defaults) {
  const CompletionRequest plain = completion("");
  EXPECT_EQ(plain.max_tokens, 16);
  EXPECT_TRUE(plain.add_special_tokens);
  const rollout::SamplingParams& params = plain.common.sampling.params;
  EXPECT_EQ(params.temperature, 1);
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(params.repetition_penalty, 1);
  EXPECT_EQ(params.stop_token_ids, (std::vector<int32_t>{0, 7}));
  EXPECT_EQ(plain.common.sampling.n, 1);
  EXPECT_FALSE(plain.common.sampling.seeded);
  EXPECT_FALSE(plain.common.options.stream);
  EXPECT_TRUE(plain.common.options.skip_special);
  EXPECT_EQ(plain.common.options.logprobs, std::nullopt);
}

TEST(Completion, FieldsLeftOutAreTheModels) {
  SamplingRules rules = kRules;
  rules.defaults = {.temperature = 0.5f, .top_p = 0.9f, .min_p = 0.1f, .repetition_penalty = 1.5f, .top_k = 20};
  const rollout::SamplingParams usual = completion("\"top_p\": null", rules).common.sampling.params;
  EXPECT_EQ(usual.temperature, 0.5f);
  EXPECT_EQ(usual.top_p, 0.9f);
  EXPECT_EQ(usual.min_p, 0.1f);
  EXPECT_EQ(usual.repetition_penalty, 1.5f);
  EXPECT_EQ(usual.top_k, 20);
  const rollout::SamplingParams told =
      completion("\"top_p\": 0.3, \"temperature\": 0.7, \"top_k\": -1, \"min_p\": 0", rules).common.sampling.params;
  EXPECT_EQ(told.temperature, 0.7f);
  EXPECT_EQ(told.top_p, 0.3f);
  EXPECT_EQ(told.top_k, -1);
  EXPECT_EQ(told.min_p, 0);
}

TEST(Completion, Prompts) {
  const auto prompts = [](std::string_view text) {
    return parse_completion(body("{\"prompt\": " + std::string(text) + "}"), kRules, false).prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(std::get<std::string>(prompts("\"a\"").at(0)), "a");
  EXPECT_EQ(std::get<Ids>(prompts("[1, 2]").at(0)), (Ids{1, 2}));
  EXPECT_EQ(prompts("[\"a\", \"b\"]").size(), 2u);
  EXPECT_EQ(std::get<Ids>(prompts("[[1], [2, 3]]").at(1)), (Ids{2, 3}));
  for (const char* bad : {"\"\"", "[]", "null", "3", "{}", "[1, \"a\"]", "[-1]", "[1.5]", "[[1], 3]", "[[\"a\"]]",
                          "[99999999999]", "[true]"})
    EXPECT_EQ(refused([&] { prompts(bad); }), "prompt") << bad;
}

TEST(Completion, Greedy) {
  const rollout::SamplingParams params =
      completion("\"temperature\": 0, \"top_p\": 0.5, \"top_k\": 3, \"min_p\": 0.5").common.sampling.params;
  EXPECT_EQ(params.temperature, 0);
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_EQ(params.min_p, 0);
  EXPECT_EQ(refused([] { completion("\"temperature\": 0, \"n\": 2"); }), "n");
  EXPECT_EQ(completion("\"temperature\": 0.001").common.sampling.params.temperature, 0.01f);
}

TEST(Completion, AllFields) {
  const CompletionRequest r = completion(
      R"("model": "m", "n": 3, "seed": -5, "stop": ["a", "b"], "stop_token_ids": [7, 9], "presence_penalty": -1,
         "frequency_penalty": 2, "repetition_penalty": 1.25, "logit_bias": {"5": 200, "6": -1.5}, "min_tokens": 4,
         "max_tokens": 5.0, "logprobs": 2, "echo": true, "add_special_tokens": false, "return_token_ids": true,
         "return_tokens_as_token_ids": true, "include_stop_str_in_output": true, "skip_special_tokens": false,
         "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
         "adapter_version": 4, "return_token_versions": true, "request_id": "id", "user": "me", "unknown": {"a": [1]})");
  const rollout::SamplingParams& params = r.common.sampling.params;
  EXPECT_EQ(r.common.model, "m");
  EXPECT_EQ(r.common.request_id, "id");
  EXPECT_EQ(r.common.sampling.n, 3);
  EXPECT_TRUE(r.common.sampling.seeded);
  EXPECT_EQ(params.seed, static_cast<uint64_t>(-5));
  EXPECT_EQ(params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(params.stop_token_ids, (std::vector<int32_t>{7, 9, 0}));
  EXPECT_EQ(params.presence_penalty, -1);
  EXPECT_EQ(params.frequency_penalty, 2);
  EXPECT_EQ(params.repetition_penalty, 1.25f);
  EXPECT_EQ(params.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, 100}, {6, -1.5f}})) << "at most 100";
  EXPECT_EQ(params.min_tokens, 4);
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_FALSE(r.add_special_tokens);
  EXPECT_EQ(r.common.sampling.prompt_logprobs, 2) << "echo with logprobs";
  const AnswerOptions& options = r.common.options;
  EXPECT_EQ(options.logprobs, 2);
  EXPECT_TRUE(options.echo && options.return_token_ids && options.tokens_as_ids && options.include_stop);
  EXPECT_TRUE(options.stream && options.include_usage && options.continuous_usage && options.return_token_versions);
  EXPECT_FALSE(options.skip_special);
  EXPECT_EQ(r.common.version.pinned, 4);
  EXPECT_EQ(completion("\"seed\": -1").common.sampling.seeded, false);
  EXPECT_EQ(completion("\"ignore_eos\": true, \"stop_token_ids\": [9]").common.sampling.params.stop_token_ids,
            std::vector<int32_t>{9});
  EXPECT_EQ(completion("\"echo\": true, \"max_tokens\": 0").max_tokens, 0);
}

TEST(Completion, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": "many")", "max_tokens"},
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": true)", "max_tokens"},
      {R"("max_tokens": 99999999999999999999)", "max_tokens"},
      {R"("temperature": -1)", "temperature"},
      {R"("temperature": 2.5)", "temperature"},
      {R"("temperature": "hot")", "temperature"},
      {R"("top_p": 0)", "top_p"},
      {R"("top_p": 1.1)", "top_p"},
      {R"("top_k": -2)", "top_k"},
      {R"("min_p": 2)", "min_p"},
      {R"("n": 0)", "n"},
      {R"("n": 100000)", "n"},
      {R"("presence_penalty": 3)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("logprobs": 21)", "logprobs"},
      {R"("logprobs": -2)", "logprobs"},
      {R"("logprobs": -1)", "logprobs"},
      {R"("prompt_logprobs": 21)", "prompt_logprobs"},
      {R"("prompt_logprobs": -2)", "prompt_logprobs"},
      {R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
      {R"("stop": "")", "stop"},
      {R"("stop": 3)", "stop"},
      {R"("stop_token_ids": ["a"])", "stop_token_ids"},
      {R"("stop_token_ids": [100])", "stop_token_ids"},
      {R"("min_tokens": -1)", "min_tokens"},
      {R"("logit_bias": {"100": 1})", "logit_bias"},
      {R"("logit_bias": {"word": 1})", "logit_bias"},
      {R"("logit_bias": {"1": "x"})", "logit_bias"},
      {R"("logit_bias": [1])", "logit_bias"},
      {R"("suffix": "tail")", "suffix"},
      {R"("best_of": 2)", "best_of"},
      {R"("use_beam_search": true)", "use_beam_search"},
      {R"("logits_processors": ["x"])", "logits_processors"},
      {R"("vllm_xargs": {"a": 1})", "vllm_xargs"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("allowed_token_ids": [1])", "allowed_token_ids"},
      {R"("bad_words": ["x"])", "bad_words"},
      {R"("truncate_prompt_tokens": 5)", "truncate_prompt_tokens"},
      {R"("structured_outputs": {"regex": "a"})", "structured_outputs"},
      {R"("stream": "maybe")", "stream"},
      {R"("seed": 1.5)", "seed"},
      {R"("adapter_version": -1)", "adapter_version"},
      {R"("adapter_version": 1, "follow_adapter": true)", "follow_adapter"},
      {R"("model": 3)", "model"},
      {R"("echo": 1)", "echo"},
  };
  for (const auto& [more, field] : cases) EXPECT_EQ(refused([&] { completion(more); }), field) << more;
  for (const char* neutral : {R"("response_format": {"type": "text"})", R"("best_of": 1)", R"("suffix": null)",
                              R"("bad_words": [])", R"("use_beam_search": false)",
                              R"("logits_processors": [], "vllm_xargs": {}, "priority": 0)", R"("stream_options": {})"})
    EXPECT_EQ(refused([&] { completion(neutral); }), "") << neutral;
  SamplingRules open = kRules;
  open.max_logprobs = -1;
  EXPECT_EQ(completion("\"logprobs\": -1", open).common.options.logprobs, 100) << "the whole vocabulary";
}

TEST(Chat, Messages) {
  const ChatRequest r = parse_chat(body(R"({"messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "n"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
         "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]}, {"role": "tool", "tool_call_id": "1"}],
      "tools": [{"type": "function"}], "tool_choice": "auto", "chat_template_kwargs": {"thinking": false},
      "documents": [{"t": "x"}], "max_tokens": 3, "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 2})"),
                                   kRules, false, {{"mood", "good"}, {"thinking", true}});
  const text::ChatInput& input = r.chat.input;
  EXPECT_EQ(input.messages[0]["content"], "a\nb");
  EXPECT_EQ(input.messages[0]["name"], "n");
  EXPECT_EQ(input.messages[1]["content"], "");
  EXPECT_EQ(input.messages[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(input.messages[2]["content"], "");
  EXPECT_EQ(input.tools.size(), 1u);
  EXPECT_EQ(input.kwargs.dump(), R"({"mood":"good","thinking":false,"documents":[{"t":"x"}]})");
  EXPECT_TRUE(input.add_generation_prompt);
  EXPECT_EQ(r.chat.role, "assistant");
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(r.common.options.logprobs, 2);
  EXPECT_EQ(chat("").max_tokens, std::nullopt);
  EXPECT_EQ(chat("\"logprobs\": true").common.options.logprobs, 0);
}

TEST(Chat, GoingOnWithAMessage) {
  const ChatRequest r = parse_chat(body(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": "It is"}], "continue_final_message": true, "add_generation_prompt": false})"),
                                   kRules, false);
  EXPECT_TRUE(r.chat.input.continue_final_message);
  EXPECT_FALSE(r.chat.input.add_generation_prompt);
  EXPECT_EQ(r.chat.role, "assistant");
  EXPECT_EQ(r.chat.last_content, "It is");
}

TEST(Chat, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("top_logprobs": 2)", "top_logprobs"},
      {R"("logprobs": 3)", "logprobs"},
      {R"("logprobs": true, "top_logprobs": 50)", "top_logprobs"},
      {R"("tool_choice": "auto")", "tool_choice"},
      {R"("tools": [])", "tools"},
      {R"("tools": [{}], "tool_choice": "required")", "tool_choice"},
      {R"("tools": [{}], "tool_choice": {"type": "function"})", "tool_choice"},
      {R"("continue_final_message": true, "add_generation_prompt": true)", "continue_final_message"},
      {R"("chat_template_kwargs": {"messages": 1})", "chat_template_kwargs"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("max_completion_tokens": 0)", "max_completion_tokens"},
  };
  for (const auto& [more, field] : cases) EXPECT_EQ(refused([&] { chat(more); }), field) << more;
  const std::pair<const char*, const char*> messages[] = {
      {"[]", "messages"},
      {"\"x\"", "messages"},
      {"[3]", "messages.0"},
      {R"([{"content": "x"}])", "messages.0.role"},
      {R"([{"role": "user", "content": 3}])", "messages.0.content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages.0.content"},
      {R"([{"role": "a", "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}])", "messages.0.tool_calls"},
  };
  for (const auto& [text, field] : messages)
    EXPECT_EQ(refused([&, text = text] { parse_chat({{"messages", body(text)}}, kRules, false); }), field) << text;
  EXPECT_EQ(refused([] { parse_chat(OrderedJson::object(), kRules, false); }), "messages");
}

TEST(Sglang, Defaults) {
  const SglangRequest r = sglang("");
  const rollout::SamplingParams& params = r.common.sampling.params;
  EXPECT_EQ(r.max_tokens, std::nullopt);
  EXPECT_FALSE(r.batch);
  EXPECT_EQ(params.temperature, 1);
  EXPECT_EQ(params.top_k, -1);
  EXPECT_EQ(r.common.options.logprobs, std::nullopt);
  EXPECT_EQ(r.logprob_start, -1);
}

TEST(Sglang, Fields) {
  const SglangRequest r = parse_sglang(body(R"({"input_ids": [[1, 2], [3]], "lora_path": ["a", null], "rid": ["x", "y"],
      "sampling_params": {"temperature": 0.5, "max_new_tokens": 9, "stop": "s", "n": 2, "top_k": 1073741824,
      "sampling_seed": 3, "min_new_tokens": 2, "no_stop_trim": true, "ignore_eos": true},
      "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2, "stream": true})"),
                                       kRules);
  EXPECT_TRUE(r.batch);
  EXPECT_EQ(r.adapters, (std::vector<std::optional<std::string>>{"a", std::nullopt}));
  EXPECT_EQ(r.ids, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(r.max_tokens, 9);
  const rollout::SamplingParams& params = r.common.sampling.params;
  EXPECT_EQ(params.temperature, 0.5f);
  EXPECT_EQ(params.logprob_temperature, 0.5f) << "after the temperature";
  EXPECT_EQ(params.stop, std::vector<std::string>{"s"});
  EXPECT_EQ(params.seed, 3u);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_TRUE(params.stop_token_ids.empty());
  EXPECT_EQ(r.common.sampling.n, 2);
  EXPECT_EQ(r.common.sampling.prompt_logprobs, 2);
  EXPECT_EQ(r.common.options.logprobs, 2);
  EXPECT_TRUE(r.common.options.include_stop && r.common.options.stream);
  const rollout::SamplingParams greedy =
      sglang(R"("sampling_params": {"temperature": 0, "n": 2})").common.sampling.params;
  EXPECT_EQ(greedy.temperature, 0);
  EXPECT_EQ(greedy.logprob_temperature, 1);
}

TEST(Sglang, ANullForMaxNewTokensIsNoFieldLeftOut) {
  EXPECT_FALSE(sglang("").to_context || sglang(R"("sampling_params": {"max_new_tokens": 9})").to_context);
  EXPECT_TRUE(sglang(R"("sampling_params": {"max_new_tokens": null})").to_context);
}

TEST(Sglang, EachPromptOfABatchMayHaveItsOwnSeed) {
  const auto batch = [](const std::string& parameters) {
    return parse_sglang(body(R"({"text": ["x", "y"], "sampling_params": )" + parameters + "}"), kRules);
  };
  EXPECT_EQ(batch(R"([{"n": 1, "sampling_seed": 4}, {"n": 1, "sampling_seed": 5}])").seeds,
            (std::vector<std::optional<uint64_t>>{4, 5}));
  EXPECT_EQ(batch(R"([{"sampling_seed": 4}, {}])").seeds, (std::vector<std::optional<uint64_t>>{4, std::nullopt}));
  const SglangRequest one = batch(R"({"sampling_seed": 4})");
  EXPECT_TRUE(one.seeds.empty());
  EXPECT_EQ(one.common.sampling.params.seed, 4u);
  EXPECT_EQ(refused([&] { batch(R"([{"sampling_seed": "x"}, {}])"); }), "sampling_params.sampling_seed");
}

TEST(Sglang, Refusals) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("input_ids": [1])", "text"},
      {R"("sampling_params": {"regex": "a"})", "sampling_params.regex"},
      {R"("sampling_params": {"temperature": -1})", "sampling_params.temperature"},
      {R"("sampling_params": {"max_new_tokens": -1})", "sampling_params.max_new_tokens"},
      {R"("sampling_params": 3)", "sampling_params"},
      {R"("sampling_params": {"max_tokens": 3})", "sampling_params.max_tokens"},
      {R"("sampling_params": {"seed": 3})", "sampling_params.seed"},
      {R"("sampling_params": {"logprobs": null})", "sampling_params.logprobs"},
      {R"("custom_logit_processor": "x")", "custom_logit_processor"},
      {R"("custom_logit_processor": ["x"])", "custom_logit_processor"},
      {R"("session_params": {"id": "s"})", "session_params"},
      {R"("lora_path": 3)", "lora_path"},
      {R"("lora_path": ["a", "b"])", "lora_path"},
      {R"("return_hidden_states": true)", "return_hidden_states"},
      {R"("return_logprob": true, "top_logprobs_num": 1000)", "top_logprobs_num"},
      {R"("return_logprob": [1])", "return_logprob"},
  };
  for (const auto& [more, field] : cases) EXPECT_EQ(refused([&] { sglang(more); }), field) << more;
  for (const char* neutral : {R"("custom_logit_processor": null)", R"("custom_logit_processor": [null])",
                              R"("custom_logit_processor": "", "session_params": [])",
                              R"("sampling_params": {"custom_params": {}, "stream_interval": 2, "regex": null})"})
    EXPECT_EQ(refused([&] { sglang(neutral); }), "") << neutral;
  // What a batch cannot have of each prompt is not taken from the first.
  const auto batch = [](const std::string& name, const std::string& values) {
    return refused([&] { parse_sglang(body(R"({"text": ["x", "y"], ")" + name + R"(": )" + values + "}"), kRules); });
  };
  EXPECT_EQ(batch("return_logprob", "[true, false]"), "return_logprob");
  EXPECT_EQ(batch("return_logprob", "[true]"), "return_logprob");
  EXPECT_EQ(batch("top_logprobs_num", "[1, 2]"), "top_logprobs_num");
  EXPECT_EQ(batch("logprob_start_len", "[0, null]"), "logprob_start_len");
  EXPECT_EQ(batch("sampling_params", "[{}, {\"n\": 2}]"), "sampling_params");
  EXPECT_EQ(batch("sampling_params", "[{}]"), "sampling_params");
  EXPECT_EQ(batch("return_logprob", "[true, true]"), "");
  EXPECT_EQ(refused([] { parse_sglang(OrderedJson::object(), kRules); }), "input_ids");
  EXPECT_EQ(refused([] { parse_sglang({{"input_ids", "x"}}, kRules); }), "input_ids");
}

TEST(Tokens, Fields) {
  const TokensRequest r = parse_tokens(
      body(R"({"token_ids": [1, 2], "model": "a", "sampling_params": {"logprobs": 0, "temperature": 0, "n": 1}})"),
      kRules);
  EXPECT_EQ(r.tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(r.max_tokens, std::nullopt);
  EXPECT_EQ(r.common.options.logprobs, 1);
  EXPECT_EQ(r.common.model, "a");
  EXPECT_EQ(refused([] { parse_tokens(body(R"({"token_ids": [1]})"), kRules); }), "sampling_params");
  const auto with_priority = [](int64_t priority) {
    return refused([&] {
      parse_tokens({{"token_ids", {1}}, {"sampling_params", OrderedJson::object()}, {"priority", priority}}, kRules);
    });
  };
  EXPECT_EQ(with_priority(1), "priority");
  EXPECT_EQ(with_priority(0), "");
  EXPECT_EQ(refused([] { parse_tokens(body(R"({"sampling_params": {}})"), kRules); }), "token_ids");
}

TEST(Load, Fields) {
  const service::AdapterSource source = parse_load(
      body(R"({"lora_name": "a", "lora_path": "/p", "load_inplace": true, "sha256": "ab", "adapter_version": 3})"));
  EXPECT_EQ(source.name, "a");
  EXPECT_EQ(source.path, "/p");
  EXPECT_TRUE(source.in_place);
  EXPECT_EQ(source.sha256, "ab");
  EXPECT_EQ(source.version, 3);
  EXPECT_EQ(refused([] { parse_load(body(R"({"lora_name": 3, "lora_path": "/p"})")); }), "lora_name");
  EXPECT_EQ(refused([] { parse_load(body(R"({"lora_name": "a"})")); }), "lora_path");
}

// Every field that is read is looked for among all of them: millions would keep the other clients waiting.
TEST(Body, HasNotTooManyFields) {
  OrderedJson many = {{"prompt", "x"}};
  for (int i = 0; i < 1100; ++i) many.push_back({"unknown" + std::to_string(i), i});
  EXPECT_EQ(refused([&] { parse_completion(many, kRules, false); }), "body");
}

TEST(Body, MustBeAnObjectOfJson) {
  const auto status = [](std::string text, std::string type = "application/json") {
    try {
      read_body({.headers = {{"content-type", type}}, .body = std::move(text)});
      return 200;
    } catch (const ApiError& error) {
      return error.status;
    }
  };
  EXPECT_EQ(status("{}"), 200);
  EXPECT_EQ(status("{}", "Application/JSON; charset=utf-8"), 200);
  EXPECT_EQ(status("{}", "text/plain"), 400);
  EXPECT_EQ(status("{}", ""), 400);
  for (const char* bad :
       {"", "{", "[]", "3", "{\"a\": 1, \"a\": 2}", "{\"a\": \"\xff\"}", "{\"a\": \"\\ud800\"}", "nul"})
    EXPECT_EQ(status(bad), 400) << bad;
  EXPECT_EQ(status("{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}"), 400) << "too deep";
}

TEST(JsonText, Strings) {
  for (const std::string& text : {std::string("plain"), std::string("\"\\\n\r\t\b\f/"),
                                  std::string("\0\x01\x1f\x7f", 4), std::string("é€😀"), std::string("")})
    EXPECT_EQ(OrderedJson::parse(json_string(text)).get<std::string>(), text);
  EXPECT_EQ(OrderedJson::parse(json_string("a\xE2\x82")), "a\xEF\xBF\xBD") << "half a character";
}

TEST(JsonText, LogprobsAreReals) {
  const auto text = [](float value) {
    std::string out;
    append_logprob(out, value);
    return out;
  };
  EXPECT_EQ(text(0), "0.0");
  EXPECT_EQ(text(-1), "-1.0");
  EXPECT_EQ(text(-std::numeric_limits<float>::infinity()), "-9999.0");
  EXPECT_EQ(text(std::numeric_limits<float>::quiet_NaN()), "-9999.0");
  for (const float value : {-0.1f, -1.2345678e-7f, -17.25f, -3.4e-20f})
    EXPECT_EQ(static_cast<float>(OrderedJson::parse(text(value)).get<double>()), value) << text(value);
}

}  // namespace
}  // namespace lockstep::server
