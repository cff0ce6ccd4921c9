#include <gtest/gtest.h>

#include "core/error.h"
#include "core/fs.h"
#include "support/temp_directory.h"
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
    const Limits limits{.bytes = size_t{1} << 24};
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
  const Limits few{.steps = 1000};
  expect_error<FormatError>(
      [&] {
        Template::parse("{% for i in range(9999) %}{{ i }}{% endfor %}", "t")
            .render(OrderedJson::object(), {.limits = few, .now = {}});
      },
      {"too many steps"});
}

}  // namespace
}  // namespace lockstep::text::jinja
