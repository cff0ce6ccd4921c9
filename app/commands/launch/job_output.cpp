#include "commands/launch/job_output.h"

#include <ostream>
#include <utility>

namespace lockstep::commands {

JobOutput::JobOutput(std::ostream& out, std::ostream& info)
    : out_(&out), info_(&info), writer_([this] { write_all(); }) {}

JobOutput::~JobOutput() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  writer_.join();
}

void JobOutput::print(int stream, std::string text) {
  if (text.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    bytes_ += text.size();
    waiting_.push_back({stream == 0 ? out_ : info_, std::move(text)});
  }
  changed_.notify_one();
}

bool JobOutput::is_full() const {
  constexpr size_t kMostBytes = size_t{64} << 20;
  const std::lock_guard lock(mutex_);
  return bytes_ > kMostBytes;
}

void JobOutput::write_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Piece piece = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    *piece.to << piece.text << std::flush;
    lock.lock();
    bytes_ -= piece.text.size();
  }
}

}  // namespace lockstep::commands
