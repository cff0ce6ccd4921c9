// A file of result lines that an interrupted run goes on with.
//
// Beside FILE lies FILE.run.json: what the lines depend on besides the rows of the input - base, adapter, sampling,
// template. It is a file of its own because these belong to all lines alike, and because lines are then the rows of the
// input with nothing but results added. It is written before the first line and stays when the run has ended, so that
// the file says how it was made, and the same command again finds nothing left to do. A line is found to be complete by
// its line break: what a killed run left without one is dropped.
#pragma once

#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "core/file_lock.h"
#include "core/fs.h"
#include "core/json.h"

namespace lockstep::commands {

// ConfigError where results would be written over what they are made from; an empty `output` is none.
void require_not_input(const std::string& output, const fs::Path& input);

class OutputFile {
 public:
  // Opens the lines of an earlier run that had the same settings, or begins a file; with `overwrite` always the latter.
  // ConfigError telling what to do: the file holds lines of other settings, or was made by something else.
  // ResourceError: it cannot be written, or another run writes it: the file is locked for as long as the object lives.
  OutputFile(std::string path, const OrderedJson& settings, bool overwrite);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Lines of the earlier run, in order; nullopt: no more, and never more once go_on() was called.
  std::optional<std::string> earlier_line();
  int64_t line_number() const { return line_; }  // of the line that was read last, from 1
  void keep() { kept_ = read_; }                 // all lines read so far
  void go_on();                                  // drops what is behind the lines that were kept
  bool going_on() const { return file_ != nullptr; }

  void write(std::string_view lines);  // whole lines, at the end; they are the system's when it returns
  // Why nobody else is kept from writing the file meanwhile (its file system has no locks), or nothing.
  std::string unlocked() const { return lock_ ? lock_->missing() : ""; }

  static std::string settings_path(const std::string& path) { return path + ".run.json"; }

 private:
  [[noreturn]] void cannot_write() const;
  void require_same(const OrderedJson& settings) const;

  const std::string path_;
  std::optional<fs::FileLock> lock_;  // of a regular file
  std::ifstream earlier_;
  int64_t line_ = 0, read_ = 0, kept_ = 0;  // lines; bytes
  std::FILE* file_ = nullptr;
};

}  // namespace lockstep::commands
