// What the sum of a gradient over ranks takes, a process and a GPU each, beside the all-reduce of NCCL in the same
// processes: bench/two_gpus.py reads what it prints. On the CPU, over TCP, the other is the same bytes without an
// addition.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "core/gpu.h"
#include "core/hmac.h"
#include "core/json.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/transfer.h"
#include "parallel/connect.h"
#include "parallel/gather.h"
#include "parallel/nccl/nccl_group.h"
#include "parallel/nccl/nccl_library.h"
#include "parallel/tcp/socket.h"
#include "parallel/tree_sum.h"
#include "parallel/visible_gpu.h"

namespace lockstep {
namespace {

using namespace parallel;

struct Options {
  int ranks = 2, rounds = 20;
  bool cuda = false, count_gpus = false;
  double megabytes = 349;  // of an 8B model's adapter of rank 32, 4 bytes a value
  int64_t floats() const { return static_cast<int64_t>(megabytes * 1e6 / 4); }
};

float value_of(int rank, int64_t i) {
  return uniform01(philox(5, {static_cast<uint32_t>(rank), static_cast<uint32_t>(i), 0, 0})[0]) - 0.5f;
}

// NCCL's own sum, on a communicator of its own.
class AllReduce {
 public:
  AllReduce(Group& group, Stream& stream) : library_(nccl::load()), stream_(stream) {
    nccl::UniqueId id{};
    if (group.rank() == 0) check(library_.unique_id(&id));
    group.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
    nccl::Config config;
    config.blocking = 1;
    check(library_.init(&comm_, group.size(), id, group.rank(), &config));
  }
  ~AllReduce() { library_.destroy(comm_); }
  AllReduce(const AllReduce&) = delete;
  AllReduce& operator=(const AllReduce&) = delete;

  void operator()(Tensor total, ConstTensor partial) {
    check(library_.all_reduce(partial.f32(), total.f32(), static_cast<size_t>(total.elements()), nccl::kFloat32,
                              nccl::kSum, comm_, stream_.native()));
    stream_.synchronize();
  }
  std::string version() const { return library_.version_text(); }

 private:
  void check(nccl::Result result) const {
    if (result != nccl::kSuccess) throw DeviceError({.what = "NCCL failed", .got = library_.error_string(result)});
  }
  const nccl::Library library_;
  Stream& stream_;
  nccl::Comm* comm_ = nullptr;
};

// Milliseconds of each round, of the slowest rank.
template <class Work>
std::vector<double> times(Group& group, int rounds, const Work& work) {
  std::vector<double> slowest;
  for (int round = -2; round < rounds; ++round) {  // two to warm up
    group.barrier();
    const Stopwatch clock;
    work();
    const double mine = clock.ms();
    const std::vector<double> all = gather_values(group, std::span(&mine, 1));
    if (round >= 0) slowest.push_back(*std::ranges::max_element(all));
  }
  return slowest;
}

void require_sum(const Buffer& total, const Options& options, Stream& stream) {
  std::vector<float> sum(static_cast<size_t>(options.floats()));
  download(sum.data(), total.data(), total.bytes(), stream);
  for (size_t i = 0; i < sum.size(); i += 4099) {
    std::vector<float> tree;
    for (int rank = 0; rank < options.ranks; ++rank) tree.push_back(value_of(rank, static_cast<int64_t>(i)));
    for (; tree.size() > 1; tree.resize((tree.size() + 1) / 2))
      for (size_t j = 0; j < tree.size(); j += 2) tree[j / 2] = tree[j] + (j + 1 < tree.size() ? tree[j + 1] : -0.0f);
    if (sum[i] != tree[0])
      throw ShapeError({.what = "the sum over ranks is another number", .where = std::to_string(i)});
  }
}

void measure(std::unique_ptr<Group> group, const Options& options) {
  Stream stream({.threads = 1, .device = options.cuda ? Device::cuda : Device::cpu});
  if (options.cuda) group = with_nccl(std::move(group), stream);
  const auto floats = static_cast<size_t>(options.floats());
  std::vector<float> values(floats);
  for (size_t i = 0; i < floats; ++i) values[i] = value_of(group->rank(), static_cast<int64_t>(i));
  const Buffer partial = device_copy(values.data(), floats * sizeof(float), stream);
  Buffer total(floats * sizeof(float), Buffer::Fill::zero, stream.device());
  const ConstTensor from(partial.data(), DType::f32, {options.floats()});
  const Tensor to(total.data(), DType::f32, {options.floats()});
  const std::vector<double> ours = times(*group, options.rounds, [&] { tree_sum(to, from, *group, stream); });
  require_sum(total, options, stream);
  Json result{{"ranks", options.ranks}, {"floats", options.floats()}, {"sum_ms", ours}};
  if (options.cuda) {
    AllReduce all_reduce(*group, stream);
    result["nccl"] = all_reduce.version();
    result["raw"] = "ncclAllReduce";
    result["raw_ms"] = times(*group, options.rounds, [&] { all_reduce(to, from); });
  } else {
    const size_t piece = floats / static_cast<size_t>(options.ranks) * sizeof(float);
    const size_t whole = piece * static_cast<size_t>(options.ranks);
    std::vector<std::byte> out(whole);
    const auto mine = std::as_bytes(std::span(values)).first(whole);
    result["raw"] = "all_to_all and all_gather of the same bytes";
    result["raw_ms"] = times(*group, options.rounds, [&] {
      group->all_to_all(out, mine);
      group->all_gather(out, mine.first(piece));
    });
  }
  if (group->rank() == 0) std::printf("%s\n", json_text(result).c_str());
}

int rank_process(const Launch& launch, const Secret& secret, const Options& options) {
  try {
    if (options.cuda) {
      constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
      const char* const visible = std::getenv(kVisible);
      if (const auto mine = visible_gpu(launch, 1, visible ? std::optional<std::string>(visible) : std::nullopt))
        ::setenv(kVisible, mine->c_str(), 1);
      ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    }
    measure(connect({.launch = launch,
                     .secret = secret,
                     .build = "this program",
                     .identity = {},
                     .timeouts = {},
                     .stuck = {},
                     .say = {}}),
            options);
    std::fflush(stdout);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, error.what());
    return error.exit_code();
  }
}

int run(const Options& options) {
  tcp::Socket listener = tcp::listen_on("127.0.0.1", 0);
  Launch launch{.size = options.ranks, .local_size = options.ranks, .port = tcp::port_of(listener)};
  Secret secret;
  fill_random(secret);
  std::vector<pid_t> children;
  for (launch.rank = 0; launch.rank < options.ranks; ++launch.rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      launch.local_rank = launch.rank;
      if (launch.rank == 0) launch.listen_fd = ::dup(listener.fd());
      listener.close();
      std::_Exit(rank_process(launch, secret, options));
    }
    children.push_back(child);
  }
  listener.close();
  int code = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    if (code == 0 && status != 0) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return code;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  CLI::App app{"The sum of a gradient over ranks, beside NCCL's all-reduce: one line of JSON."};
  lockstep::Options options;
  app.add_flag("--cuda", options.cuda, "a GPU for each rank; else the CPU, over TCP");
  app.add_flag("--count-gpus", options.count_gpus, "print how many GPUs there are, and nothing else");
  app.add_option("--ranks", options.ranks)->check(CLI::Range(2, 64));
  app.add_option("--megabytes", options.megabytes)->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (options.count_gpus) return std::printf("%d\n", lockstep::num_gpus()), 0;
  return lockstep::run(options);
}
