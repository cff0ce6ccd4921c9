#include "parallel/tcp/rendezvous.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/json.h"
#include "core/make_error.h"
#include "parallel/report.h"
#include "parallel/tcp/doorkeeper.h"
#include "parallel/tcp/hello.h"

namespace lockstep::parallel::tcp {

namespace {

const Fault kEnded{.what = "its process ended before all ranks of the job had met", .where = "control channel"};

Hello hello_of(const Connection& connection) {
  const Launch& launch = connection.launch;
  return {.build = connection.build,
          .rank = launch.rank,
          .size = launch.size,
          .job = launch.job,
          .process = {},
          .identity = connection.identity};
}

std::string new_process_name() {
  uint64_t number[2];
  fill_random(std::as_writable_bytes(std::span(number)));
  return std::to_string(number[0]) + std::to_string(number[1]);
}

class Rendezvous {
 public:
  explicit Rendezvous(const Connection& connection)
      : connection_(connection),
        launch_(connection.launch),
        deadline_(Clock::now() + connection.timeouts.meet),
        doorkeeper_(listener(), connection.secret) {
    for (std::vector<Socket>& mesh : connections_.meshes) mesh.resize(static_cast<size_t>(launch_.size));
  }

  Connections meet() {
    if (launch_.rank == 0) {
      try {
        gather();
        welcome();
        accept_data();
        await_ready();
      } catch (const Error& error) {
        tell_members({.kind = error.kind(), .fault = error.fault(), .exit_code = error.exit_code()});
        throw;
      }
    } else {
      call_rank_0();
      dial_lower();
      accept_data();
      send_all(connections_.control[0], encode(FrameType::ready), deadline_);
      expect(FrameType::start);
    }
    return std::move(connections_);
  }

 private:
  size_t size() const { return static_cast<size_t>(launch_.size); }

  Socket listener() {
    if (launch_.rank == 0 && launch_.listen_fd >= 0) {
      ::fcntl(launch_.listen_fd, F_SETFL, O_NONBLOCK);
      ::fcntl(launch_.listen_fd, F_SETFD, FD_CLOEXEC);
      return Socket(launch_.listen_fd);
    }
    // Without a need to hear other hosts nobody else is heard.
    const std::string host = is_loopback(launch_.master) ? "127.0.0.1" : "";
    Socket socket = listen_on(host, launch_.rank == 0 ? launch_.port : uint16_t{0});
    data_port_ = port_of(socket);
    return socket;
  }

  void say(const std::string& line) const {
    if (connection_.say) connection_.say(line);
  }

  // --- rank 0 ---

  void gather() {
    connections_.control.resize(size());
    addresses_.resize(size());
    processes_.resize(size());
    const auto has_come = [](const Socket& member) { return member.open(); };
    while (static_cast<size_t>(std::ranges::count_if(connections_.control, has_come)) + 1 < size()) {
      std::optional<Newcomer> newcomer = doorkeeper_.next(deadline_, [&] { require_members(); });
      if (!newcomer) throw_missing();
      take_member(*newcomer);
    }
  }

  // A process that calls again is not another one: its earlier connection is of no use any more.
  void take_member(Newcomer& newcomer) {
    const std::string from = peer_address(newcomer.socket);
    try {
      const Hello hello = read_hello(newcomer.hello.text(), hello_of(connection_), from);
      if (hello.group != kControl) throw ConfigError({.what = "a data connection comes before the group has met"});
      Socket& place = connections_.control[static_cast<size_t>(hello.rank)];
      std::string& process = processes_[static_cast<size_t>(hello.rank)];
      if (hello.rank == 0 || (place.open() && process != hello.process))
        throw ConfigError({.what = "two processes are the same rank of a job",
                           .where = "rank " + std::to_string(hello.rank),
                           .attempt = "another secret file or port for each of two jobs"});
      place = std::move(newcomer.socket);
      process = hello.process;
      addresses_[static_cast<size_t>(hello.rank)] = {is_loopback(from) ? "" : from, hello.data_port};
    } catch (const Error& error) {
      last_refused_ = error.what();
      say("refused a process at " + from + ": " + error.what());
      const Report report{.kind = error.kind(), .fault = error.fault(), .exit_code = error.exit_code()};
      const std::vector<std::byte> frame = encode(FrameType::refused, pack_report(report));
      (void)send_some(newcomer.socket, frame);
    }
  }

  // A rank that has come and gone will not come again: the others need not wait for the rest.
  void require_members() const {
    for (size_t rank = 1; rank < size(); ++rank) {
      const Socket& member = connections_.control[rank];
      if (member.open() && has_ended(member)) throw PeerFailed(static_cast<int>(rank), kEnded, 1);
    }
  }

  // Why there will be no group.
  void tell_members(const Report& report) const {
    const std::vector<std::byte> frame = encode(FrameType::refused, pack_report(report));
    for (const Socket& member : connections_.control)
      if (member.open()) (void)send_some(member, frame);
  }

  [[noreturn]] void throw_missing() const {
    std::string missing;
    for (size_t rank = 1; rank < size(); ++rank)
      if (!connections_.control[rank].open()) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    std::string got = "no sign of rank " + missing;
    if (doorkeeper_.refused() > 0)
      got += "; " + std::to_string(doorkeeper_.refused()) + " connections did not prove to know the job's secret";
    if (!last_refused_.empty()) got += "; the last that was refused: " + last_refused_;
    throw Cancelled({.what = "not all ranks of the job came",
                     .where = "port " + std::to_string(launch_.port != 0 ? launch_.port : data_port_),
                     .got = got,
                     .wanted = std::to_string(launch_.size) + " ranks within " +
                               std::to_string(connection_.timeouts.meet.count()) + " ms"});
  }

  void welcome() {
    OrderedJson places = OrderedJson::array();
    for (const Address& address : addresses_) places.push_back({address.host, address.port});
    const std::vector<std::byte> frame = encode(FrameType::welcome, json_text(places));
    for (size_t rank = 1; rank < size(); ++rank) send_all(connections_.control[rank], frame, deadline_);
  }

  void await_ready() {
    for (size_t rank = 1; rank < size(); ++rank) {
      const Socket& member = connections_.control[rank];
      while (!can_read(member, std::min(deadline_, Clock::now() + kTurn)) && Clock::now() < deadline_)
        require_members();
      if (receive_frame(member, kMemberBytes, deadline_).type != FrameType::ready)
        throw FormatError({.what = "a rank does not say that it is ready", .where = "rank " + std::to_string(rank)});
    }
    for (size_t rank = 1; rank < size(); ++rank)
      send_all(connections_.control[rank], encode(FrameType::start), deadline_);
  }

  // --- the others ---

  // Connects to another rank and says hello. A listener that is besieged by strangers may have to let go of this caller
  // before it has proved who it is. `reached`: it has listened there; where nobody does any more, for kGone, it has
  // ended.
  Socket call(int rank, const std::string& host, uint16_t port, const Hello& hello, bool& reached) const {
    constexpr std::chrono::seconds kGone{5};
    std::optional<Deadline> gone;
    for (;;) {
      hear_rank_0();
      try {
        Socket socket = dial(host, port, std::min(deadline_, Clock::now() + std::chrono::seconds(1)));
        reached = true;
        gone.reset();
        prove_as_caller(socket, connection_.secret, deadline_, [&] { hear_rank_0(); });
        send_all(socket, encode(FrameType::hello, hello_text(hello)), deadline_);
        return socket;
      } catch (const Cancelled& error) {
        if (Clock::now() >= deadline_) throw;
        const bool nobody = reached && error.fault().got == std::strerror(ECONNREFUSED);
        if (nobody && !gone) gone = Clock::now() + kGone;
        if (!nobody) gone.reset();
        if (gone && Clock::now() >= *gone) throw PeerFailed(rank, kEnded, 1);
      } catch (const ResourceError&) {
        if (Clock::now() >= deadline_) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
  }

  // It may say meanwhile that there will be no group.
  void hear_rank_0() const {
    if (launch_.rank != 0 && !connections_.control.empty() && can_read(connections_.control[0], Clock::now()))
      expect(FrameType::start);
  }

  void call_rank_0() {
    Hello hello = hello_of(connection_);
    hello.process = new_process_name();
    hello.data_port = data_port_;
    const Frame frame = welcomed(hello);
    const Json places = Json::parse(frame.text(), nullptr, false);
    if (!places.is_array() || places.size() != size())
      throw FormatError({.what = "rank 0 does not say where the ranks are"});
    for (const Json& place : places)
      addresses_.push_back({place.at(0).get<std::string>(), place.at(1).get<uint16_t>()});
    addresses_[0] = {"", launch_.port};
  }

  // Rank 0 may have let go of this caller before it has read the hello; it is called again then.
  Frame welcomed(const Hello& hello) {
    for (bool reached = false;;) {
      Socket socket = call(0, launch_.master, launch_.port, hello, reached);
      Frame frame;
      try {
        frame = receive_frame(socket, kMemberBytes, deadline_);
      } catch (const ResourceError&) {
        continue;
      }
      connections_.control.push_back(std::move(socket));
      return expected(FrameType::welcome, std::move(frame));
    }
  }

  Frame expect(FrameType type) const { return expected(type, receive_from_rank_0()); }

  Frame expected(FrameType type, Frame frame) const {
    if (frame.type == type) return frame;
    if (frame.type == FrameType::refused) {
      const Report report = unpack_report(frame.bytes);
      if (const std::exception_ptr error = make_error(report.kind, report.fault)) std::rethrow_exception(error);
      throw PeerFailed(0, report.fault, report.exit_code);
    }
    throw FormatError({.what = "rank 0 says something else than was expected"});
  }

  Frame receive_from_rank_0() const {
    try {
      return receive_frame(connections_.control[0], kMemberBytes, deadline_);
    } catch (const ResourceError&) {
      throw PeerFailed(0, kEnded, 1);
    }
  }

  // Their listeners answer when they have done the same: rank 1 waits for nobody.
  void dial_lower() {
    Hello hello = hello_of(connection_);
    for (int rank = 0; rank < launch_.rank; ++rank)
      for (hello.group = 0; hello.group < static_cast<int>(kGroups); ++hello.group) {
        const Address& address = addresses_[static_cast<size_t>(rank)];
        bool reached = true;  // it has said where it listens
        mesh_place(hello.group, rank) =
            call(rank, address.host.empty() ? launch_.master : address.host, address.port, hello, reached);
      }
  }

  // --- all ---

  Socket& mesh_place(int group, int rank) {
    return connections_.meshes[static_cast<size_t>(group)][static_cast<size_t>(rank)];
  }

  void accept_data() {
    for (int missing = (launch_.size - 1 - launch_.rank) * static_cast<int>(kGroups); missing > 0;) {
      std::optional<Newcomer> newcomer =
          doorkeeper_.next(deadline_, [&] { launch_.rank == 0 ? require_members() : hear_rank_0(); });
      if (!newcomer)
        throw Cancelled({.what = "not all ranks connected to each other in time",
                         .where = "rank " + std::to_string(launch_.rank),
                         .attempt = "see that the hosts reach each other on any port"});
      try {
        const Hello hello = read_hello(newcomer->hello.text(), hello_of(connection_), peer_address(newcomer->socket));
        if (hello.group == kControl || hello.rank <= launch_.rank || mesh_place(hello.group, hello.rank).open())
          throw ConfigError({.what = "this rank has a connection already"});
        mesh_place(hello.group, hello.rank) = std::move(newcomer->socket);
        --missing;
      } catch (const Error& error) {
        say("refused a process at " + peer_address(newcomer->socket) + ": " + error.what());
      }
    }
    doorkeeper_.close();
  }

  struct Address {
    std::string host;  // empty: where rank 0 is
    uint16_t port = 0;
  };

  const Connection& connection_;
  const Launch& launch_;
  const Deadline deadline_;
  uint16_t data_port_ = 0;
  Doorkeeper doorkeeper_;
  std::vector<Address> addresses_;
  std::vector<std::string> processes_;  // of the members, by rank
  Connections connections_;
  std::string last_refused_;
};

}  // namespace

Connections meet(const Connection& connection) {
  return Rendezvous(connection).meet();
}

}  // namespace lockstep::parallel::tcp
