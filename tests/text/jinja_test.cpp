#include <gtest/gtest.h>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"
#include "text/jinja/characters.h"
#include "text/jinja/template.h"

namespace lockstep::text::jinja {
namespace {

using lockstep::testing::expect_error;

const fs::Path kGoldens = fs::Path(LOCKSTEP_SOURCE_DIR) / "tests/golden/chat";

std::tm golden_now() {
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 6, now.tm_mday = 4, now.tm_wday = 6, now.tm_yday = 184, now.tm_hour = 9;
  return now;
}

std::string rendered(const std::string& source, const OrderedJson& variables = OrderedJson::object()) {
  return Template::parse(source, "t").render(variables, {.limits = {}, .now = golden_now()}).text;
}

OrderedJson spans_of(const Rendering& rendering) {
  OrderedJson spans = OrderedJson::array();
  for (const Span& span : rendering.generation_spans) spans.push_back({span.begin, span.end});
  return spans;
}

// What jinja2 and Python refuse is refused here, with their message where a template or an undefined value says it.
void check_case(const OrderedJson& golden, const std::string& source, const OrderedJson& variables) {
  try {
    const Rendering got = Template::parse(source, "t").render(variables, {.limits = {}, .now = golden_now()});
    EXPECT_TRUE(golden.contains("text")) << source << "\n" << got.text;
    if (!golden.contains("text")) return;
    EXPECT_EQ(got.text, golden["text"].get<std::string>()) << source;
    EXPECT_EQ(spans_of(got), golden["spans"]) << source;
  } catch (const Error& error) {
    if (error.fault().what.starts_with("not supported") || error.fault().what == "an integer is too large") return;
    EXPECT_FALSE(golden.contains("text")) << source << "\n" << error.what();
    if (golden.contains("message") && dynamic_cast<const DataError*>(&error) != nullptr) {
      EXPECT_EQ(error.fault().what, golden["message"].get<std::string>()) << source;
    }
  }
}

TEST(Jinja, GoldensOfJinja2) {
  const OrderedJson shared = OrderedJson::parse(fs::read_file(kGoldens / "shared.json"));
  const std::string text = fs::read_file(kGoldens / "cases.jsonl");
  int cases = 0;
  for (size_t begin = 0; begin < text.size(); ++cases) {
    const size_t end = text.find('\n', begin);
    const OrderedJson golden = OrderedJson::parse(text.substr(begin, end - begin));
    const OrderedJson& source =
        golden["template"].is_number() ? shared["templates"][golden["template"].get<size_t>()] : golden["template"];
    check_case(golden, source.get<std::string>(),
               golden["variables"].is_null() ? shared["variables"] : golden["variables"]);
    begin = end + 1;
  }
  EXPECT_GT(cases, 700);
}

TEST(Jinja, WhitespaceControl) {
  EXPECT_EQ(rendered("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(rendered("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(rendered("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(rendered("x {#- c -#} y"), "xy");
  EXPECT_EQ(rendered("{% raw %}\n{{ x }}{% endraw %}\nz"), "\n{{ x }}z");
  EXPECT_EQ(rendered("a\r\nb\rc\n\n"), "a\nb\nc\n");
}

TEST(Jinja, SafeTextEscapesWhatIsAddedToIt) {
  EXPECT_EQ(rendered("{{ ('<a>'|safe) + '<b>' }}{{ '<c>' + ('<d>'|safe) }}{{ ('x'|safe) ~ '<' }}"),
            "<a>&lt;b&gt;&lt;c&gt;<d>x<");
}

TEST(Jinja, AConditionOfALoopIsAskedWhenItsItemIsNeeded) {
  EXPECT_EQ(rendered("{% set ns = namespace(n=0) %}{% for x in range(9) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ x }}"
                     "{% endfor %}"),
            "01");
}

TEST(Jinja, VariablesThatALevelSetsHideGivenOnes) {
  EXPECT_EQ(rendered("{% set x %}[{{ x }}]{% endset %}{{ x }}", {{"x", "given"}}), "[]");
  EXPECT_EQ(rendered("{{ x }}{% set x %}[{{ x }}]{% endset %}{{ x }}", {{"x", "given"}}), "given[given]");
  EXPECT_EQ(rendered("{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", {{"x", "given"}}), "given");
}

// Items of a temporary row were once read after it was gone.
TEST(Jinja, FiltersOfTextsLookAtItsCharacters) {
  EXPECT_EQ(rendered("{{ 'abc'|select('in', 'bc')|join }}{{ 'abcabc'|unique|join('-') }}{{ 'cab'|sort|join }}"),
            "bca-b-cabc");
}

TEST(Jinja, GenerationSpansAreBytes) {
  const Rendering got =
      Template::parse("é{% generation %}ü{{ x }}{% endgeneration %}z{% generation %}{% endgeneration %}", "t")
          .render({{"x", "漢"}});
  EXPECT_EQ(got.text, "éü漢z");
  EXPECT_EQ(got.generation_spans, (std::vector<Span>{{2, 7}, {8, 8}}));
}

TEST(Jinja, SyntaxErrorsNameTheLine) {
  expect_error<FormatError>([] { Template::parse("a\n{% for x y %}", "T"); }, {"T line 2", "'y'", "'in'"});
  expect_error<FormatError>([] { Template::parse("\n\n{{ 'open }}", "T"); }, {"T line 3", "a string does not end"});
  expect_error<FormatError>([] { Template::parse("{% if x %}\n\n", "T"); }, {"ends inside a block", "endif"});
  expect_error<FormatError>([] { Template::parse("\n{% include 'x' %}", "T"); },
                            {"T line 2", "not supported", "include"});
  expect_error<FormatError>([] { Template::parse("{{ x|uper }}", "T"); }, {"T line 1", "uper", "upper"});
  expect_error<FormatError>([] { Template::parse("{{ x is strin }}", "T"); }, {"strin", "string"});
  expect_error<FormatError>([] { Template::parse("{% break %}", "T"); }, {"break"});
  expect_error<FormatError>([] { Template::parse("{{ (1] }}", "T"); }, {"bracket", "]"});
  expect_error<FormatError>([] { Template::parse("{{ 1 \xFF }}", "T"); }, {"UTF-8"});
}

TEST(Jinja, RuntimeErrorsNameTheLine) {
  expect_error<DataError>([] { rendered("a\n\n{{ raise_exception('no ' ~ 1) }}"); }, {"no 1", "t line 3"});
  expect_error<DataError>([] { rendered("\n{{ x.y }}"); }, {"'x' is undefined", "t line 2"});
  expect_error<DataError>([] { rendered("{{ {}.a.b }}"); }, {"'dict object' has no attribute 'a'"});
  expect_error<DataError>([] { rendered("{{ [].append(1) }}"); },
                          {"access to attribute 'append' of 'list' object is unsafe."});
  expect_error<DataError>([] { rendered("{{ 'a' + 1 }}"); }, {"can only concatenate str"});
  expect_error<FormatError>([] { rendered("{% if true %}{{ 1|nope }}{% endif %}"); }, {"not supported", "'nope'"});
  expect_error<FormatError>([] { rendered("{{ [1]|map('upper') }}"); }, {"printing a generator"});
  EXPECT_EQ(rendered("{% if false %}{{ 1|nope }}{% endif %}{{ 2|nope if false else 3 }}"), "3");
}

TEST(Jinja, HostileTemplatesAreStopped) {
  const auto stopped = [](const std::string& source) {
    const RenderLimits limits{.max_bytes = size_t{1} << 24};
    expect_error<FormatError>(
        [&] { Template::parse(source, "t").render(OrderedJson::object(), {.limits = limits, .now = {}}); },
        {"too many"});
  };
  stopped("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
  stopped("{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}");
  stopped("{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}{% endfor %}");
  stopped("{{ 'x' * 99999999999 }}");
  stopped("{{ [0] * 10 ** 12 }}");
  stopped("{{ 'x'|center(10 ** 12) }}");
  stopped("{{ '%2000000000d' % 3 }}");
  expect_error<DataError>([] { rendered("{{ range(10 ** 9) }}"); }, {"Range too big"});
  expect_error<DataError>([] { rendered("{{ 9 ** 9999 }}"); }, {"too large"});
  expect_error<FormatError>([] { Template::parse("{{ " + std::string(9999, '(') + "1", "t"); }, {"nested"});
  expect_error<FormatError>([] { Template::parse("{{ 1" + std::string(9999, '+') + "1 }}", "t"); }, {"nested"});
  expect_error<FormatError>([] { Template::parse(std::string(2 << 20, 'x'), "t"); }, {"too long"});
  const RenderLimits few{.max_steps = 1000};
  expect_error<FormatError>(
      [&] {
        Template::parse("{% for i in range(9999) %}{{ i }}{% endfor %}", "t")
            .render(OrderedJson::object(), {.limits = few, .now = {}});
      },
      {"too many steps"});
}

// Each of these is short and would take minutes or more, or all memory, if it were not charged for what it costs.
TEST(Jinja, WorkIsChargedForWhatItCosts) {
  const auto loop = [](const std::string& before, const std::string& body) {
    return before + "{% for i in range(99999) %}{% for j in range(99999) %}" + body + "{% endfor %}{% endfor %}";
  };
  const std::string doubled =
      "{% set ns = namespace(t=()) %}{% for i in range(99) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}";
  const std::string a = "{% set a = 'a' * 10**5 %}{% set b = 'a' * 10**4 ~ 'b' %}";
  for (const std::string& source :
       {loop("", ""),
        loop(a, "{% set x = b in a %}"),
        loop(a, "{% set x = a.find(b) %}"),
        loop(a, "{% set x = a.rfind('b' ~ a[1:9999]) %}"),
        loop(a, "{% set x = a.count(b) %}"),
        loop(a, "{% set x = a.replace(b, '') %}"),
        loop(a, "{% set x = a.split(b) %}"),
        loop(a, "{% set x = a.partition(b) %}"),
        loop(a, "{% set x = a.strip(b) %}"),
        loop(a, "{% set x = a < a %}"),
        loop(a, "{% set x = a == a ~ '' %}"),
        loop(a, "{% set x = a.startswith(a) %}"),
        loop("{% set a = '\u00e9' * 10**5 %}", "{% set x = a[99998] %}"),
        loop(a, "{% set x = 'c' in a %}"),
        loop("{% set a = ' ' * 10**5 %}", "{% set x = a.strip() %}"),
        loop("{% set a = 'a ' * 10**5 %}", "{% set x = a.rsplit(none, 10**5) %}"),
        loop("{% set a = '1' * 10**5 %}", "{% set x = a|int %}"),
        loop("", "{% set x = '%.99999f' % 1.5 %}"),
        loop("{% set a = range(99999) %}", "{% set x = a|sum %}"),
        loop("{% set a = [''] * 9999 %}", "{% set x = ''.join(a) %}"),
        loop("{% set a = range(99999) %}", "{% set x = '{}'.format(*a) %}"),
        loop("", "{% for k in [1] if k > 1 %}{% endfor %}"),
        loop("", "{% set x = strftime_now('%c' * 500) %}"),
        doubled + "{{ {ns.t: 1} }}",
        doubled + "{{ ns.t }}",
        doubled + "{{ ns.t|tojson }}",
        doubled + "{% set u = ns.t %}{{ ns.t in [u, (u, u)] }}{{ (u, 1) == (u, 2) }}{{ {1: 2}.get(u) }}",
        std::string("{{ (',' * 10**9).split(',') }}"),
        std::string("{{ ('\n' * 10**9).splitlines() }}"),
        std::string("{{ (' x' * 10**8).split() }}"),
        std::string("{{ range(99999)|unique|list|length }}")}) {
    const RenderLimits limits{.max_steps = 2'000'000, .max_bytes = size_t{1} << 26};
    try {
      Template::parse(source, "t").render(OrderedJson::object(), {.limits = limits, .now = golden_now()});
      ADD_FAILURE() << "not stopped: " << source;
    } catch (const FormatError& error) {
      EXPECT_TRUE(error.fault().what.starts_with("the template takes too many ")) << source << "\n" << error.what();
    }
  }
}

// What is looked at is told by pieces, so that whoever counts can end it.
TEST(Jinja, CharactersAreStrippedByPieces) {
  const std::string text(size_t{1} << 20, 'a');
  for (const bool left : {true, false}) {
    size_t most = 0, bytes = 0;
    EXPECT_EQ(strip(text + "b" + text, "a", left, !left,
                    [&](size_t piece) {
                      most = std::max(most, piece);
                      bytes += piece;
                    }),
              left ? "b" + text : text + "b");
    EXPECT_LT(most, 5000u);
    EXPECT_EQ(bytes, text.size());
  }
  struct Enough {};
  EXPECT_THROW(strip(std::string(9999, ' '), std::nullopt, true, true, [](size_t) { throw Enough(); }), Enough);
}

TEST(Jinja, LargeTextsAreSearchedInLinearTime) {
  EXPECT_EQ(rendered("{% set a = 'a' * 10**6 %}{{ (a ~ 'b') in (a ~ a) }}{{ (a ~ a).find(a ~ 'b') }}"
                     "{{ (a ~ a).rfind('b' ~ a) }}{{ (a ~ 'b' ~ a).count(a ~ 'b') }}{{ (a ~ 'b').split(a)|length }}"),
            "False-1-112");
}

// As many steps as the limits allow: a conversation of megabytes through what real templates do with one.
TEST(Jinja, LargeConversationsFitTheLimits) {
  const std::string content(1 << 20, 'x');
  OrderedJson messages = OrderedJson::array();
  for (int i = 0; i < 8; ++i) messages.push_back({{"role", "user"}, {"content", "<think>é" + content + "</think>"}});
  const std::string source =
      "{% for m in messages %}{% set c = m.content|trim %}{% if '</think>' in c %}"
      "{% set r = c.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}{% endif %}"
      "{{ '<|' + m.role + '|>' + r + c.replace('\r', '') }}{{ m|tojson(indent=2) }}{% endfor %}";
  EXPECT_GT(rendered(source, {{"messages", messages}}).size(), size_t{24} << 20);
}

// Names are looked for in lists, so what a large template lists must not be their square.
TEST(Jinja, LargeTemplatesAreParsedInLinearTime) {
  std::string arguments, parameters, names, blocks;
  for (int i = 0; i < 50'000; ++i) {
    const std::string name = "a" + std::to_string(i);
    arguments += (i > 0 ? "," : "") + name + "=1";
    parameters += (i > 0 ? "," : "") + name;
    if (i < 20'000) names += "{% set " + name + "=1 %}";
    if (i < 20'000) blocks += "{%for b in c%}d{%endfor%}";
  }
  Template::parse("{{ f(" + arguments + ") }}", "t");
  Template::parse("{% macro f(" + parameters + ") %}{% endmacro %}", "t");
  Template::parse(names + blocks, "t");
}

TEST(Jinja, LongMessagesOfATemplateAreCut) {
  try {
    rendered("{{ raise_exception('é' * 10**5) }}");
    ADD_FAILURE();
  } catch (const DataError& error) {
    EXPECT_EQ(error.fault().what.size(), 4096u + 3);
    EXPECT_TRUE(error.fault().what.ends_with("é..."));
  }
}

}  // namespace
}  // namespace lockstep::text::jinja
