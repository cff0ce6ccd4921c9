#include "commands/files/output_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <system_error>

#include "core/error.h"

namespace lockstep::commands {

namespace {

namespace stdfs = std::filesystem;

// Absolute, without links, dots or a slash at its end.
fs::Path place_of(const std::string& path) {
  const fs::Path place = stdfs::weakly_canonical(stdfs::absolute(path));
  return place.has_filename() ? place : place.parent_path();
}

bool lies_in(const fs::Path& inner, const fs::Path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void check_replaceable(const fs::Path& path, const OutputDirectory::Rules& rules) {
  if (!fs::is_directory(path))
    throw ConfigError({.what = "the output is a file", .where = path.string(), .wanted = "a directory, or nothing"});
  if (stdfs::is_empty(path)) return;
  if (!rules.overwrite)
    throw ConfigError({.what = "the output directory is not empty",
                       .where = path.string(),
                       .wanted = "a new or empty directory",
                       .attempt = "another one, or --overwrite, which replaces all that is in it"});
  if (!fs::is_file(path / rules.marker))
    throw ConfigError({.what = "the output directory holds something else, which is not overwritten",
                       .where = path.string(),
                       .got = "no " + rules.marker,
                       .attempt = "another directory, or remove this one"});
}

}  // namespace

OutputDirectory::OutputDirectory(const std::string& given, const Rules& rules, const recipes::Control& control)
    : path_(place_of(given)) {
  for (const fs::Path& input : rules.inputs)
    if (lies_in(place_of(input.string()), path_))
      throw ConfigError({.what = "the output would replace an input",
                         .where = path_.string(),
                         .got = input.string(),
                         .wanted = "a directory of its own"});
  if (fs::exists(path_)) check_replaceable(path_, rules);
  std::error_code error;
  made_ = stdfs::create_directories(path_, error);
  if (error)
    throw ResourceError({.what = "cannot make the output directory",
                         .where = path_.string(),
                         .got = error.message(),
                         .attempt = "a directory you may write to"});
  lock_.emplace(path_, "the output directory", "another output directory, or wait for the process that writes there");
  check_replaceable(path_, rules);  // somebody may have written it since
  if (!lock_->missing().empty())
    *control.info << fmt::format("note    {} cannot be locked ({}): see that nobody else writes there\n",
                                 path_.string(), lock_->missing());
  const std::string own = path_.filename().string();
  fs::sweep_temporaries(path_.parent_path(), [&](const std::string& name) { return name == own; });
}

OutputDirectory::~OutputDirectory() {
  std::error_code ignored;  // one that is not empty stays
  if (made_ && stdfs::is_empty(path_, ignored)) stdfs::remove(path_, ignored);
}

}  // namespace lockstep::commands
