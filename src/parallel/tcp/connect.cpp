#include "parallel/connect.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/fs.h"
#include "core/hmac.h"
#include "parallel/gather.h"
#include "parallel/tcp/rendezvous.h"
#include "parallel/tcp/tcp_group.h"

namespace lockstep::parallel {

namespace {

void require_launch(const Launch& launch) {
  if (launch.size >= 1 && launch.rank >= 0 && launch.rank < launch.size) return;
  throw ConfigError({.what = "impossible rank",
                     .where = "Launch",
                     .got = "rank " + std::to_string(launch.rank) + " of " + std::to_string(launch.size),
                     .wanted = "a rank below the number of ranks, which is at least 1"});
}

std::vector<std::byte> identity_bytes(const Identity& identity) {
  std::vector<std::byte> bytes;
  for (const auto& [name, value] : identity)
    for (const std::string* text : {&name, &value}) {
      const auto* const first = reinterpret_cast<const std::byte*>(text->data());
      bytes.insert(bytes.end(), first, first + text->size());
      bytes.push_back(std::byte{0});
    }
  return bytes;
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The fields of identity_bytes: name, value, name, value ...
std::vector<std::string> fields_of(std::span<const std::byte> bytes) {
  std::vector<std::string> fields(1);
  for (const char c : as_text(bytes))
    if (c == 0)
      fields.emplace_back();
    else
      fields.back() += c;
  return fields;
}

}  // namespace

std::unique_ptr<Group> connect(const Connection& connection) {
  require_launch(connection.launch);
  const Launch& launch = connection.launch;
  if (launch.size == 1) return solo();
  tcp::Connections connections = tcp::meet(connection);
  auto control = std::make_shared<tcp::Control>(std::move(connections.control),
                                                tcp::Control::Options{.rank = launch.rank,
                                                                      .size = launch.size,
                                                                      .timeouts = connection.timeouts,
                                                                      .lifeline_fd = launch.lifeline_fd,
                                                                      .stuck = connection.stuck});
  return tcp::make_group(std::move(control), std::move(connections.meshes), launch.rank, connection.timeouts);
}

bool is_this_host(const std::string& address) {
  return tcp::is_loopback(address);
}

Secret read_secret(const std::string& file) {
  struct stat status {};
  const auto refuse = [&](const std::string& what, const std::string& got, const std::string& wanted) {
    throw ConfigError({.what = what, .where = file, .got = got, .wanted = wanted});
  };
  if (::stat(file.c_str(), &status) != 0)
    refuse("the file of the job's secret cannot be read", std::strerror(errno), "");
  if (S_ISDIR(status.st_mode)) refuse("the job's secret is in a file", "a directory", "a file");
  if (status.st_uid != ::geteuid())
    refuse("the file of the job's secret belongs to somebody else", "", "a file of this user");
  if ((status.st_mode & 077) != 0) refuse("others may read the file of the job's secret", "", "mode 0600 (chmod 600)");
  const std::string text = fs::read_file(file);
  if (text.size() < 16)
    refuse("the job's secret is too short", std::to_string(text.size()) + " bytes",
           "at least 16: head -c 32 /dev/urandom > FILE");
  // A key of one length out of whatever the file holds.
  constexpr std::string_view kPurpose = "lockstep job secret";
  return hmac_sha256(std::as_bytes(std::span(text)), std::as_bytes(std::span(kPurpose)));
}

void require_same(Group& group, const Identity& mine) {
  const std::vector<std::vector<std::byte>> all = gather_varied(group, identity_bytes(mine));
  const std::vector<std::string> wanted = fields_of(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> got = fields_of(all[rank]);
    size_t i = 0;
    while (i < std::min(got.size(), wanted.size()) && got[i] == wanted[i]) ++i;
    const size_t name = i / 2 * 2;
    const auto at = [](const std::vector<std::string>& fields, size_t index) {
      return index < fields.size() ? fields[index] : std::string();
    };
    throw ConfigError({.what = "the ranks of a job are not alike",
                       .where = "rank " + std::to_string(rank) + ": " + at(wanted, name),
                       .got = at(got, name + 1),
                       .wanted = at(wanted, name + 1) + ", as rank 0"});
  }
}

}  // namespace lockstep::parallel
