// Programs that answer each line on their standard input with one line on their standard output.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::net {

struct LinePoolOptions {
  std::string command;                                                // for /bin/sh
  std::vector<std::pair<std::string, std::string>> environment = {};  // besides this process's own
  size_t num_programs = 1;                     // at most that many run, and each has one line to answer at a time
  std::chrono::milliseconds timeout{120'000};  // from the line to its answer
  size_t max_line_bytes = size_t{16} << 20;    // of an answer
};

// Programs are started when they are needed, by a thread of the pool, and end with it: their input is closed, and what
// still runs a second later is killed. One that does not answer in
// time, ends, writes too much or writes without being asked is killed, and the next line begins another one, after a
// pause that grows up to five seconds while none of them answers. What they write to their standard error is kept for
// messages, its last two thousand bytes.
//
// When so many lines in a row have run out of time that every program has had two (and at least three have), the lines
// that wait are given up too: the programs hang, and waiting for each line in turn would take hours. Where so many
// programs have ended by themselves before any has ever answered a line, or one with 126 or 127, as /bin/sh ends for a
// program that is not there, no line is answered.
class LinePool {
 public:
  struct Answer {
    std::string line;     // without its end
    std::string failure;  // not empty: there is no answer, because ...
  };
  // Called once for each line, on the pool's thread. False: that was no answer, and the program that wrote it is
  // replaced.
  using OnDone = std::function<bool(Answer)>;

  explicit LinePool(LinePoolOptions options);  // ResourceError: no pipe, no thread
  ~LinePool();                                 // lines in flight are dropped
  LinePool(const LinePool&) = delete;
  LinePool& operator=(const LinePool&) = delete;

  void send(std::string line, OnDone on_done);  // any thread
  int64_t num_started() const;                  // programs, those that were replaced included

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::net
