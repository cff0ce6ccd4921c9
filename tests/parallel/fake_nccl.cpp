// A library with NCCL's functions for the ranks of one process and host memory, so that our calls can be tested without
// GPUs. As NCCL with `blocking = 0` it answers "in progress" and has to be asked again, and it counts calls that NCCL
// does not allow: on a communicator that is gone, or that was not asked whether its last call has begun.
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7;

struct Mail {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent;  // by sender and receiver
  int ranks = 0, joined = 0;
};

struct Fake {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Mail>> worlds;
  std::map<std::string, int> numbers = {{"version", 22809}, {"fail_after", -1}, {"hang_after", -1}};
  int next_id = 1;
};
Fake& fake() {
  static Fake* const one = new Fake;
  return *one;
}
int number(const std::string& name) {
  const std::lock_guard lock(fake().mutex);
  return fake().numbers[name];
}
void count(const std::string& name) {
  const std::lock_guard lock(fake().mutex);
  ++fake().numbers[name];
}

struct Receive {
  void* to;
  size_t bytes;
  int peer;
  bool adds = false;  // floats, to those that are there
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Mail> mail;
  int rank = 0, calls = 0;
  bool asked = true, gone = false;
  std::deque<Receive> waiting;  // of one rank in the order of its sends
  std::vector<std::pair<int, std::vector<char>>> outgoing;
};

namespace {

thread_local ncclComm* in_group = nullptr;

bool usable(ncclComm* comm) {
  if (!comm->gone && comm->asked) return true;
  count("misuse");
  return false;
}

int state_of(ncclComm* comm) {
  Mail& mail = *comm->mail;
  const std::lock_guard lock(mail.mutex);
  if (mail.joined < mail.ranks) return kInProgress;
  const int fail_after = number("fail_after"), hang_after = number("hang_after");
  if (fail_after >= 0 && comm->calls > fail_after) return kRemoteError;
  if (hang_after >= 0 && comm->calls > hang_after) return kInProgress;
  while (!comm->waiting.empty()) {
    const Receive& next = comm->waiting.front();
    auto& letters = mail.sent[{next.peer, comm->rank}];
    if (letters.empty()) return kInProgress;
    if (letters.front().size() != next.bytes) return kInvalidArgument;
    if (next.adds)
      for (size_t at = 0; at < next.bytes; at += sizeof(float)) {
        float letter;
        std::memcpy(&letter, letters.front().data() + at, sizeof(letter));
        *reinterpret_cast<float*>(static_cast<char*>(next.to) + at) += letter;
      }
    else
      std::memcpy(next.to, letters.front().data(), next.bytes);
    letters.pop_front();
    comm->waiting.pop_front();
  }
  return kSuccess;
}

}  // namespace

extern "C" {

// For tests.
void fake_nccl_set(const char* name, int value) {
  const std::lock_guard lock(fake().mutex);
  fake().numbers[name] = value;
}
int fake_nccl_get(const char* name) {
  return number(name);
}

int ncclGetVersion(int* version) {
  *version = number("version");
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "fake error";
}
const char* ncclGetLastError(ncclComm*) {
  return "the fake was told to";
}

struct ncclUniqueId {
  char bytes[128];
};
int ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(fake().mutex);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::memcpy(id->bytes, &fake().next_id, sizeof(int));
  ++fake().next_id;
  return kSuccess;
}

struct Config {
  size_t size;
  unsigned int magic, version;
  int blocking;
};
int ncclCommInitRankConfig(ncclComm** comm, int ranks, ncclUniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  int key = 0;
  std::memcpy(&key, id.bytes, sizeof(key));
  *comm = new ncclComm;  // never freed: calls on one that is gone are counted
  {
    const std::lock_guard lock(fake().mutex);
    std::shared_ptr<Mail>& mail = fake().worlds[key];
    if (!mail) mail = std::make_shared<Mail>();
    (*comm)->mail = mail;
  }
  (*comm)->rank = rank;
  (*comm)->asked = false;
  const std::lock_guard lock((*comm)->mail->mutex);
  (*comm)->mail->ranks = ranks;
  ++(*comm)->mail->joined;
  return kInProgress;
}

int ncclCommGetAsyncError(ncclComm* comm, int* result) {
  if (comm->gone) count("misuse");
  *result = state_of(comm);
  comm->asked = *result != kInProgress;
  return kSuccess;
}

int ncclCommAbort(ncclComm* comm) {
  if (comm->gone) count("misuse");
  comm->gone = true;
  count("aborted");
  return kSuccess;
}
int ncclCommDestroy(ncclComm* comm) {
  if (comm->gone || !comm->waiting.empty()) count("misuse");
  comm->gone = true;
  count("destroyed");
  return kSuccess;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, ncclComm* comm, void*) {
  if (!usable(comm) || type != 7 || operation != 0 || comm->mail->ranks != 2) return kInvalidArgument;
  const size_t bytes = count * sizeof(float);
  const int other = 1 - comm->rank;
  if (to != from) std::memcpy(to, from, bytes);
  const std::lock_guard lock(comm->mail->mutex);
  const auto* const own = static_cast<const char*>(from);
  comm->mail->sent[{comm->rank, other}].emplace_back(own, own + bytes);
  comm->waiting.push_back({to, bytes, other, true});
  ++comm->calls;
  comm->asked = false;
  return kInProgress;
}

int ncclGroupStart() {
  in_group = nullptr;
  return kSuccess;
}
int ncclSend(const void* from, size_t bytes, int, int peer, ncclComm* comm, void*) {
  if (!usable(comm)) return kInvalidArgument;
  in_group = comm;
  comm->outgoing.emplace_back(
      peer, std::vector<char>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes));
  return kSuccess;
}
int ncclRecv(void* to, size_t bytes, int, int peer, ncclComm* comm, void*) {
  if (!usable(comm)) return kInvalidArgument;
  in_group = comm;
  comm->waiting.push_back({to, bytes, peer});
  return kSuccess;
}
#ifndef FAKE_NCCL_IS_INCOMPLETE
int ncclGroupEnd() {
  ncclComm* const comm = in_group;
  if (comm == nullptr) return kSuccess;
  const std::lock_guard lock(comm->mail->mutex);
  for (auto& [peer, bytes] : comm->outgoing) comm->mail->sent[{comm->rank, peer}].push_back(std::move(bytes));
  comm->outgoing.clear();
  ++comm->calls;
  comm->asked = false;
  return kInProgress;
}
#endif

}  // extern "C"
