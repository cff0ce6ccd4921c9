#include "commands/describe_staleness.h"

#include <fmt/format.h>

#include <ostream>

namespace lockstep::commands {

void describe_staleness(const recipes::StalenessRule& rule, std::ostream& out) {
  if (rule.is_synchronous()) return;
  const int64_t k = rule.max_staleness, every = rule.update_interval;
  out << "ahead       "
      << (k == 0 ? std::string("rollout r is sampled with the adapter of r iterations of training")
                 : fmt::format("rollout r is sampled with the adapter of r - {} iterations of training (the first one "
                               "for r < {})",
                               k, k))
      << (every == 1 ? "" : fmt::format(", rounded down to a multiple of {}", every))
      << ", while earlier rollouts are trained on\n";
  out << fmt::format(
      "            a sample is up to {} iterations old; tokens and adapter are functions of the seed and "
      "of this rule, not of timing\n",
      rule.most_ahead());
  out << fmt::format(
      "            held at once: {} versions of the adapter and one being made, samples of up to {} "
      "rollouts; keys and values beside activations (above)\n",
      rule.versions(), rule.most_ahead() + 1);
  out << "            the difference of log-probs is measured where it is asked for (--true-on-policy-mode): it takes "
         "one more forward pass of a step's samples\n";
}

}  // namespace lockstep::commands
