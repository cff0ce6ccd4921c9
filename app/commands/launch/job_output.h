// What a job prints, written by a thread of its own: a reader that pauses (a pager, Ctrl-S) does not hold up the job.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <iosfwd>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep::commands {

class JobOutput {
 public:
  JobOutput(std::ostream& out, std::ostream& info);
  ~JobOutput();  // waits until all has been written, or can no longer be
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  // To standard output (0) or error (1), after everything before. Never waits.
  void print(int stream, std::string text);
  bool is_full() const;  // so much waits to be written that ranks should wait, too

 private:
  struct Piece {
    std::ostream* to;
    std::string text;
  };
  void write_all();

  std::ostream *const out_, *const info_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> waiting_;
  size_t bytes_ = 0;  // of waiting_ and of the piece being written
  bool ended_ = false;
  std::thread writer_;
};

}  // namespace lockstep::commands
