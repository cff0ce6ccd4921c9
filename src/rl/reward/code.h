// Programs as responses: where the code stands, and what it is tried on.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rl {

struct CodeCase {
  std::string input;                  // on the standard input
  std::string appended;               // code behind that of the response; it ends with an error unless all is well
  std::optional<std::string> output;  // what must be printed, but for white space at the ends of lines and of the whole

  bool passes(std::string_view printed) const;
};

struct CodeCases {
  std::vector<CodeCase> cases;  // at least one
};

// A label in JSON: {"inputs": [...], "outputs": [...]} of strings, as APPS and verl have it; or a list of statements
// (["assert f(1) == 2", ...]), also as {"assert_case": [...]} or {"tests": [...]}. nullopt: anything else.
std::optional<CodeCases> code_cases(std::string_view label);
const char* wanted_cases();

// Inside of the last fence of three backticks behind </think>, without the name of the language; without a fence all of
// it.
std::string code_of(std::string_view response);

}  // namespace lockstep::rl
