#include "server/http/loop.h"

#include <atomic>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <utility>

namespace lockstep::server {

struct Worker::Impl {
  std::atomic<size_t> unfinished = 0;
  std::atomic<bool> stopping = false;
  boost::asio::thread_pool pool{1};
};

Worker::Worker() : impl_(std::make_unique<Impl>()) {}

Worker::~Worker() {
  impl_->stopping = true;
  impl_->pool.join();
}

void Worker::post(Task task) {
  ++impl_->unfinished;
  boost::asio::post(impl_->pool, [impl = impl_.get(), task = std::move(task)] {
    if (!impl->stopping) task();
    --impl->unfinished;
  });
}

bool Worker::idle() const {
  return impl_->unfinished == 0;
}

}  // namespace lockstep::server
