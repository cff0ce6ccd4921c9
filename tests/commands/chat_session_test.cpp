// A conversation, with what is typed and what is shown as streams.
#include <algorithm>

#include "commands/commands_fixture.h"
#include "commands/conversation.h"

namespace lockstep::commands {
namespace {

using lockstep::testing::expect_error;

class Chat : public Commands {
 protected:
  Chat() {
    options_.base = {.hf_checkpoint = kArith, .stream = {.threads = 2}, .device = "cpu"};
    options_.interactive = true;
    options_.sampling.temperature = 0;
    options_.sampling.max_tokens = 6;
    fs::write_file_atomic(path("chat.jinja"),
                          "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
                          "<{{ m.role[0] }}>{{ m.content }}\n{% endfor %}"
                          "{% if add_generation_prompt %}<a>{% endif %}");
    control_.in_terminal = true;
  }

  // What is answered, and (info_) all else.
  std::string talk(const std::string& typed) {
    std::istringstream in(typed);
    control_.in = &in;
    taken(info_);
    run_generate(options_, control_);
    return taken(out_);
  }
  bool told(const std::string& text) const { return info_.str().find(text) != std::string::npos; }
  Json saved(const std::string& name) const { return Json::parse(fs::read_file(path(name)))["messages"]; }
  std::string completion(const std::string& prompt) {
    GenerateOptions one = options_;
    one.interactive = false;
    one.prompt = prompt;
    run_generate(one, control_);
    return taken(out_);
  }

  GenerateOptions options_;
};

TEST_F(Chat, WithoutATemplateItContinuesTheText) {
  const std::string first = completion("12+34=");
  EXPECT_EQ(talk("12+34=\n"), first);
  EXPECT_TRUE(told("no chat template: it continues the text")) << info_.str();
  const std::string second = completion("12+34=" + first.substr(0, first.size() - 1) + "1+1=");
  EXPECT_EQ(talk("12+34=\n\n1+1=\n"), first + second);
}

TEST_F(Chat, TheTemplateSeesTheWholeConversation) {
  options_.chat.template_file = path("chat.jinja");
  std::string first = completion("<u>1+2=\n<a>");
  std::string wanted = first;
  first.pop_back();
  wanted += completion("<s>add\n<u>1+2=\n<a>" + first + "\n<u>3+4=\n<a>");
  EXPECT_EQ(talk("1+2=\n/system add\n3+4=  \n/save " + path("said.json") + "\n"), wanted);
  EXPECT_FALSE(told("no chat template"));
  const Json messages = saved("said.json");
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0], (Json{{"role", "system"}, {"content", "add"}}));
  EXPECT_EQ(messages[1], (Json{{"role", "user"}, {"content", "1+2="}}));
  EXPECT_EQ(messages[2], (Json{{"role", "assistant"}, {"content", first}}));
  EXPECT_EQ(messages[3]["content"], "3+4=");
}

TEST_F(Chat, UndoAndReset) {
  options_.chat.template_file = path("chat.jinja");
  const std::string one = talk("1+2=\n");
  EXPECT_EQ(talk("1+2=\n/undo\n1+2=\n/undo\n/undo\n"), one + one);
  EXPECT_TRUE(told("(0 turns left)") && told("there is no turn to take back")) << info_.str();
  EXPECT_EQ(talk("/system x\n9+9=\n/reset\n/system\n1+2=\n"), talk("/system x\n9+9=\n") + one);
  talk("/system x\n1+2=\n/reset\n/save " + path("r.json") + "\n");
  EXPECT_EQ(saved("r.json").size(), 1u) << "what /system said stays";
}

// Asked again the answer is drawn anew, but a session that hears the same says the same.
TEST_F(Chat, ATurnTakenBackIsAnsweredAnew) {
  options_.sampling.temperature = 3.0f;
  options_.sampling.ignore_eos = true;
  const std::string asked = "12+34=\n/undo\n";
  const std::string once = talk(asked), thrice = talk(asked + asked + asked);
  EXPECT_TRUE(thrice.starts_with(once));
  EXPECT_NE(thrice, once + once + once);
  EXPECT_EQ(talk(asked + asked + asked), thrice);
}

TEST_F(Chat, SettingsApplyToTheNextAnswer) {
  const std::string six = talk("12+34=\n");
  const std::string one = talk("/set max_tokens 1\n12+34=\n");
  EXPECT_TRUE(told("(cut after 1 tokens: /set max_tokens N allows more)")) << info_.str();
  EXPECT_LT(one.size(), six.size());
  talk("/set temperature 0.7\n/set stop [\"a\", \"\\n\"]\n/set\n");
  EXPECT_TRUE(told("temperature         0.7\n")) << info_.str();
  EXPECT_TRUE(told("stop                [\"a\",\"\\n\"]\n")) << info_.str();
  EXPECT_EQ(
      talk("/set max_tokens 1\n/set max_tokens 0\n/set temperature warm\n/set top_k 1.5\n/set seed -1\n/set warmth 1\n"
           "/set stop [1]\n12+34=\n"),
      one)
      << "what was refused changes nothing";
  for (const char* part : {"impossible sampling parameter", "warm", "a whole number", "at least 0",
                           "no such sampling field", "repetition_penalty", "a list of strings"})
    EXPECT_TRUE(told(part)) << part << info_.str();
  const std::string cut = talk("/set stop " + six.substr(0, 1) + "\n12+34=\n");
  EXPECT_EQ(cut, "\n");
}

TEST_F(Chat, AdaptersChangeBetweenAnswersAndErrorsKeepTheOldOne) {
  const std::string adapter = adapter_of(kArith, lora::LoraType::fused, 8);
  const std::string turn = "12+34=\n/reset\n";
  const std::string base = talk(turn);
  options_.adapter_path = adapter;
  const std::string adapted = talk(turn);
  ASSERT_NE(adapted, base);
  options_.adapter_path.clear();
  EXPECT_EQ(talk(turn + "/adapter " + adapter + "\n" + turn + "/adapter /nowhere\n" + turn +
                 "/adapter\n/adapter off\n" + turn + "/adapter " + adapter + "\n" + turn),
            base + adapted + adapted + base + adapted);
  EXPECT_TRUE(told("version 7, rank 8") && told("/nowhere") && told("no adapter: the base answers")) << info_.str();
}

TEST_F(Chat, TurnsAreCheapAndTheStatsSaySo) {
  options_.chat.template_file = path("chat.jinja");
  std::string typed;
  for (int i = 0; i < 6; ++i) typed += "what is 123+456 and 78+90?\n";
  talk(typed + "/stats\n");
  const std::string info = info_.str();
  const size_t at = info.find("prompt  ");
  ASSERT_NE(at, std::string::npos) << info;
  int tokens = 0, cached = 0;
  ASSERT_EQ(std::sscanf(info.c_str() + at, "prompt %d tokens, %d of them", &tokens, &cached), 2) << info;
  EXPECT_GT(tokens, 100);
  EXPECT_GT(cached, tokens / 2);
  EXPECT_TRUE(told("answers 6, 36 tokens") || told("answers 6, ")) << info;
  EXPECT_TRUE(told("of 512 tokens, 6 turns")) << info;
  talk("/stats\n");
  EXPECT_TRUE(told("answers 0, 0 tokens, 0.0 tok/s\ncontext 0 of 512 tokens, 0 turns")) << info_.str();
}

TEST_F(Chat, AFullContextIsSaidAndTheTurnIsNotTaken) {
  const std::string one = talk("1+2=\n");
  EXPECT_EQ(talk(std::string(600, '7') + "\n/stats\n1+2=\n/save " + path("s.json") + "\n"), one);
  for (const char* part : {"does not fit the model's context", "fewer than 512", "/undo", "/reset", "0 turns"})
    EXPECT_TRUE(told(part)) << part << info_.str();
  EXPECT_EQ(saved("s.json").size(), 2u);
  options_.sampling.ignore_eos = true;
  options_.sampling.max_tokens = 100;
  talk(std::string(500, '7') + "\n");
  EXPECT_TRUE(told("(cut: the context of 512 tokens is full; /undo")) << info_.str();
}

// Ctrl-C while an answer is drawn: pressed once, seen by forget_interrupt at the nth look.
TEST_F(Chat, AnInterruptStopsTheAnswerOnly) {
  options_.sampling.ignore_eos = true;
  options_.sampling.max_tokens = 40;
  const std::string whole = talk("1+2=\n");
  int looks = 0;
  control_.forget_interrupt = [&] { return ++looks == 8; };
  const std::string said = talk("1+2=\n/save " + path("s.json") + "\n/reset\n1+2=\n");
  const size_t end = said.find('\n');
  EXPECT_GT(end, 0u);
  EXPECT_LT(end, whole.size() - 1);
  EXPECT_TRUE(whole.starts_with(said.substr(0, end)));
  EXPECT_EQ(said.substr(end + 1), whole) << "the next answer is whole";
  EXPECT_TRUE(told("(stopped)"));
  EXPECT_EQ(saved("s.json")[1]["content"], said.substr(0, end));
  looks = 6;  // the second look is the first in the loop
  EXPECT_EQ(talk("1+2=\n/save " + path("s.json") + "\n"), "\n");
  EXPECT_TRUE(told("the turn is taken back")) << info_.str();
  EXPECT_TRUE(saved("s.json").empty());
}

TEST_F(Chat, AnInterruptAtThePromptIsAnsweredAndOneToEndEnds) {
  int waits = 0;
  bool pressed = false;
  control_.await_input = [&] { return !(pressed = ++waits == 1); };
  control_.forget_interrupt = [&] { return std::exchange(pressed, false); };
  EXPECT_EQ(talk("1+2=\n"), completion("1+2="));
  EXPECT_TRUE(told("(Ctrl-D ends)\n> ")) << info_.str();
  waits = 0;
  control_.forget_interrupt = [] { return false; };  // SIGTERM
  control_.interrupted = [&] { return waits > 0; };
  expect_error<Cancelled>([&] { talk("1+2=\n"); }, {"interrupted"});
}

TEST_F(Chat, CommandsAndTheirErrors) {
  talk("/help\n/exit\n1+2=\n");
  for (const char* part :
       {"/reset", "/system TEXT", "/undo", "/save FILE", "/set FIELD VALUE", "/adapter DIR|off", "/stats", "/exit"})
    EXPECT_TRUE(told(part)) << part;
  EXPECT_EQ(taken(out_), "") << "nothing behind /exit";
  talk("/rest\n/save\n/save " + path("chat.jinja") + "/below\n");
  for (const char* part : {"no such command", "try:    /reset", "//", "/save needs a file", "cannot write"})
    EXPECT_TRUE(told(part)) << part << info_.str();
  EXPECT_EQ(talk("//2=\n"), completion("/2="));
}

TEST_F(Chat, APipeIsTheSameButErrorsEndInOne) {
  const std::string typed = "1+2=\n3+4=";  // the last line without a break
  const std::string wanted = talk(typed);
  EXPECT_TRUE(told("> "));
  control_.in_terminal = false;
  EXPECT_EQ(talk(typed), wanted);
  EXPECT_FALSE(told("> ")) << info_.str();
  expect_error<DataError>([&] { talk("/nonsense\n" + typed); }, {"not all of the conversation", "1 errors"});
  EXPECT_EQ(taken(out_), wanted) << "the rest was had";
  control_.interrupted = [] { return true; };
  expect_error<Cancelled>([&] { talk(typed); }, {"interrupted"});
}

TEST(Conversation, WhatATemplateRefusesIsSaid) {
  Conversation conversation(text::ChatTemplate::parse("{{ raise_exception('never') }}", "t.jinja"), {});
  conversation.user("hi");
  expect_error<DataError>([&] { conversation.prompt(); }, {"never", "the conversation"});
  EXPECT_EQ(conversation.turns(), 1);
  EXPECT_TRUE(conversation.undo());
  EXPECT_FALSE(conversation.undo());
}

}  // namespace
}  // namespace lockstep::commands
