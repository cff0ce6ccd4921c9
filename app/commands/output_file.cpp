#include "commands/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/fs.h"

namespace lockstep::commands {

namespace {

constexpr const char* kWayOut = "another --output, or --overwrite to begin this one anew";

}  // namespace

void require_not_input(const std::string& output, const fs::Path& input) {
  if (!output.empty() && fs::same_place(output, input))
    throw ConfigError({.what = "--output is the input", .where = output, .attempt = "another file"});
}

OutputFile::OutputFile(std::string path, const OrderedJson& settings, bool overwrite) : path_(std::move(path)) {
  const std::string beside = settings_path(path_);
  const fs::Path parent = fs::Path(path_).parent_path(), directory = parent.empty() ? "." : parent;
  const bool exists = fs::exists(path_);
  if (!exists) fs::require_writable_directory(directory);
  if (!exists || fs::is_file(path_)) lock_.emplace(path_, "the --output file", "another --output");
  if (fs::is_file(path_) && std::filesystem::file_size(path_) > 0 && !overwrite) {
    require_same(settings);
    earlier_.open(path_, std::ios::binary);
    if (!earlier_) throw DataError({.what = "cannot read file", .where = path_, .got = std::strerror(errno)});
    return;
  }
  if (exists && !fs::is_file(path_)) {  // a device or a pipe keeps nothing that could be gone on with
    go_on();
    return;
  }
  // Emptied before the settings change: a run killed in between leaves no lines that look like its own.
  fs::require_writable_directory(directory);
  go_on();
  fs::write_file_atomic(beside, json_text(settings, 2) + "\n");
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void OutputFile::require_same(const OrderedJson& settings) const {
  const std::string beside = settings_path(path_);
  if (!fs::exists(beside))
    throw ConfigError({.what = "the output file exists, and nothing says how it was made",
                       .where = path_,
                       .wanted = beside + " beside it",
                       .attempt = kWayOut});
  const OrderedJson earlier = parse_ordered_json(fs::read_file(beside), beside);
  std::string was, is;
  const auto add = [](std::string& list, const std::string& name, const OrderedJson& values) {
    list += (list.empty() ? "" : ", ") + name + " " + (values.contains(name) ? json_text(values[name]) : "nothing");
  };
  for (const auto& [name, value] : settings.items())
    if (!earlier.is_object() || !earlier.contains(name) || json_text(earlier[name]) != json_text(value)) {
      add(was, name, earlier);
      add(is, name, settings);
    }
  if (!was.empty())
    throw ConfigError({.what = "the output file was begun with other settings",
                       .where = path_,
                       .got = is,
                       .wanted = was,
                       .attempt = kWayOut});
}

std::optional<std::string> OutputFile::earlier_line() {
  std::string line;
  // At the end of the file without a line break: torn.
  if (going_on() || !std::getline(earlier_, line) || earlier_.eof()) return std::nullopt;
  ++line_;
  read_ += static_cast<int64_t>(line.size()) + 1;
  return line;
}

void OutputFile::go_on() {
  if (going_on()) return;
  earlier_.close();
  file_ = std::fopen(path_.c_str(), "ab");
  if (file_ == nullptr || (fs::is_file(path_) && ftruncate(fileno(file_), kept_) != 0)) cannot_write();
}

void OutputFile::write(std::string_view lines) {
  go_on();
  if (std::fwrite(lines.data(), 1, lines.size(), file_) != lines.size() || std::fflush(file_) != 0) cannot_write();
}

void OutputFile::cannot_write() const {
  throw ResourceError({.what = "the output cannot be written",
                       .where = path_,
                       .got = std::strerror(errno),
                       .attempt = "free disk space, then the same command again: it goes on where it stopped"});
}

}  // namespace lockstep::commands
