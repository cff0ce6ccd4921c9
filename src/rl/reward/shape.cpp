#include "rl/reward/shape.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

namespace lockstep::rl {

double grade_format(std::string_view response) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  if (!response.starts_with(kOpen)) return 0;
  const std::string_view rest = response.substr(kOpen.size());
  return rest.find(kOpen) == std::string_view::npos && rest.find(kClose) != std::string_view::npos ? 1 : 0;
}

double grade_repetition(std::string_view response, int64_t n, double penalty) {
  std::string small;
  std::vector<size_t> begins;  // of words in `small`, which has one space behind each
  bool inside = false;
  for (const char c : response) {
    const auto byte = static_cast<unsigned char>(c);
    const bool space = std::isspace(byte) != 0;
    if (!space && !inside) begins.push_back(small.size());
    if (!space) small += static_cast<char>(std::tolower(byte));
    if (space && inside) small += ' ';
    inside = !space;
  }
  if (inside) small += ' ';
  const auto words = static_cast<int64_t>(begins.size());
  if (words < n) return 0;
  begins.push_back(small.size());
  std::unordered_set<std::string_view> distinct;
  const int64_t all = words - n + 1;
  for (int64_t i = 0; i < all; ++i) {
    const size_t begin = begins[static_cast<size_t>(i)], end = begins[static_cast<size_t>(i + n)];
    distinct.insert(std::string_view(small).substr(begin, end - begin));
  }
  return penalty * (1 - static_cast<double>(distinct.size()) / static_cast<double>(all));
}

double grade_length(int64_t length, int64_t wanted) {
  return std::max(0.0, 1 - std::abs(static_cast<double>(length - wanted)) / static_cast<double>(wanted));
}

double grade_soft_overlong(int64_t length, int64_t most, int64_t cache) {
  if (length <= most - cache) return 0;
  if (length > most) return -1;
  return static_cast<double>(most - cache - length) / static_cast<double>(cache);
}

}  // namespace lockstep::rl
