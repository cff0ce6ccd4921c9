// argv cut into occurrences of flags, and the classes they fall into: used, claims about results, compatible, not
// available yet, unknown.
//
// As argparse: `--flag value` and `--flag=value`; the last of a repeated flag wins; what follows a flag up to the next
// token that starts with "--" belongs to it (so -1 and -1e-5 are values). Unlike argparse: abbreviations (--num-roll
// for --num-rollout) are not accepted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/flags.h"
#include "cli/known.h"

namespace lockstep::cli {

struct Occurrence {
  std::string flag;
  Values values;
  bool joined = false;  // written --flag=value
};

// Which launch scripts a command reads besides its own flags.
enum class Scripts { none, train, sft, serve };

struct MadeClaim {
  Occurrence flag;  // with a value, also if it is a switch
  Claim claim;
};

struct Classified {
  std::vector<Occurrence> used, compatible;  // one per flag, in order
  std::vector<MadeClaim> claims;
  std::vector<std::pair<std::string, std::string>> shape;  // (flag without dashes, value or "true")
  Values positionals;
  std::vector<std::string> notes;  // a line for each compatible flag

  const Occurrence* given(std::string_view flag) const;  // used, claim or compatible; nullptr: not given
};

// `elsewhere`: flags of another command, named as such instead of being corrected. Throws one ConfigError for all flags
// that are unknown (each with the nearest known name) or not available yet, with the --without that leaves out those of
// the latter which change no result; ConfigError for a missing or surplus value, for a compatible flag whose value
// contradicts what this program does, and for --without of any other flag. What --without leaves out is noted.
Classified classify(const Values& args, const FlagSet& flags, Scripts scripts, const FlagSet* elsewhere = nullptr,
                    size_t num_positionals = 0);

// Hands the used flags to their bindings.
void bind(const Classified& classified, const FlagSet& flags);

}  // namespace lockstep::cli
