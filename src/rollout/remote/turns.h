// Threads that take turns: one of them runs at a time, and another one only while that one waits, for a server as a
// rule. So what they share needs no lock of its own, and may have changed after each wait.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep::rollout {

class Turns {
 public:
  // A caller's turn, from when it comes until this ends. Reentrant: a further one of the same thread does nothing.
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns), first_(turns.enter()) {}
    ~Turn() {
      if (first_) turns_.leave();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
    const bool first_;
  };

  // A helper's turn. It runs only while some caller has a turn and waits: what callers do beside their turns, such as
  // training on the same stream, is never disturbed.
  template <class Work>
  void help(const Work& work) {
    take(true);
    work();
    give();
  }

  // Lets others run while `wait` does, which touches nothing that is shared. Within a turn.
  template <class Wait>
  void pause(const Wait& wait) {
    const bool helping = is_helping();
    give();
    wait();
    take(helping);
  }
  bool is_helping() const;  // the turn of this thread is a helper's

 private:
  bool enter();
  void leave();
  void take(bool helping);
  void give();

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::thread::id running_ = {};  // none: nobody runs
  bool helping_ = false;          // running_ is a helper
  int callers_ = 0;               // that have a turn or wait for one
};

}  // namespace lockstep::rollout
