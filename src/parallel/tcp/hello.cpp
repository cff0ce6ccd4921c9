#include "parallel/tcp/hello.h"

#include <algorithm>
#include <optional>

#include "core/json.h"
#include "parallel/tcp/open_call.h"

namespace lockstep::parallel::tcp {

namespace {

constexpr int kProtocol = 2;  // raised when what follows "build" and "rank" changes, or what ranks say to each other

constexpr const char* kWhere = "hello of another rank";

// Before protocol 2 the build was the first field of the identity.
std::optional<std::string> build_in(const Json& json) {
  if (json.is_object() && json.contains("build") && json["build"].is_string()) return json["build"].get<std::string>();
  if (json.is_object() && json.contains("identity") && json["identity"].is_array())
    for (const Json& field : json["identity"])
      if (field.is_array() && field.size() == 2 && field[0] == "build" && field[1].is_string())
        return field[1].get<std::string>();
  return std::nullopt;
}

void require_same_build(const Json& json, const Hello& ours, const std::string& from) {
  const std::optional<std::string> build = build_in(json);
  if (build == ours.build) return;
  const bool named = json.is_object() && json.contains("rank") && json["rank"].is_number_integer();
  throw ConfigError({.what = "the ranks of a job are of different builds",
                     .where = (named ? "rank " + json_text(json["rank"]) : std::string("a rank")) + " at " + from,
                     .got = build ? "build " + *build : "a build that does not say which it is",
                     .wanted = "build " + ours.build + ", as rank " + std::to_string(ours.rank),
                     .attempt = "start all ranks with the same program"});
}

[[noreturn]] void throw_different(int rank, const std::string& field, const std::string& theirs,
                                  const std::string& ours) {
  throw ConfigError({.what = "the ranks of a job are not alike",
                     .where = "rank " + std::to_string(rank) + ": " + field,
                     .got = theirs,
                     .wanted = ours + ", as rank 0"});
}

Identity read_identity(const Json& list) {
  if (!list.is_array()) throw FormatError({.what = "no list of fields", .where = kWhere});
  Identity identity;
  for (const Json& field : list) {
    if (!field.is_array() || field.size() != 2 || !field[0].is_string() || !field[1].is_string())
      throw FormatError({.what = "a field is no name and value", .where = kWhere});
    identity.emplace_back(field[0].get<std::string>(), field[1].get<std::string>());
  }
  return identity;
}

void require_alike(const Hello& theirs, const Hello& ours) {
  const auto compare = [&](const std::string& field, const std::string& a, const std::string& b) {
    if (a != b) throw_different(theirs.rank, field, a, b);
  };
  compare("job", theirs.job, ours.job);
  compare("number of ranks", std::to_string(theirs.size), std::to_string(ours.size));
  if (theirs.rank < 0 || theirs.rank >= ours.size)
    throw_different(theirs.rank, "rank", std::to_string(theirs.rank), "0 to " + std::to_string(ours.size - 1));
  for (size_t i = 0; i < std::max(theirs.identity.size(), ours.identity.size()); ++i) {
    const auto field = [&](const Identity& identity) {
      return i < identity.size() ? identity[i] : std::pair<std::string, std::string>();
    };
    const auto [name, value] = field(ours.identity);
    const auto [their_name, their_value] = field(theirs.identity);
    compare(name.empty() ? their_name : name, their_name == name ? their_value : "", value);
  }
}

}  // namespace

std::string hello_text(const Hello& hello) {
  OrderedJson identity = OrderedJson::array();
  for (const auto& [name, value] : hello.identity) identity.push_back({name, value});
  return json_text(OrderedJson{{"build", hello.build},
                               {"rank", hello.rank},
                               {"protocol", kProtocol},
                               {"group", hello.group},
                               {"data_port", hello.data_port},
                               {"size", hello.size},
                               {"job", hello.job},
                               {"process", hello.process},
                               {"identity", identity}});
}

Hello read_hello(std::string_view text, const Hello& ours, const std::string& from) {
  const Json json = Json::parse(text, nullptr, false);
  require_same_build(json, ours, from);
  const JsonObject object(json, kWhere);
  const auto rank = static_cast<int>(object.integer("rank"));
  // Builds of one name may differ where nobody has committed the changes.
  if (const int64_t protocol = object.integer("protocol"); protocol != kProtocol)
    throw_different(rank, "protocol", std::to_string(protocol), std::to_string(kProtocol));
  Hello hello{.build = ours.build,
              .rank = rank,
              .group = static_cast<int>(object.integer("group")),
              .data_port = static_cast<uint16_t>(object.integer("data_port")),
              .size = static_cast<int>(object.integer("size")),
              .job = object.string("job"),
              .process = object.string("process"),
              .identity = read_identity(object.value("identity"))};
  if (hello.group < kControl || hello.group >= static_cast<int>(kGroups))
    throw FormatError({.what = "a connection is for a group that there is not", .where = kWhere});
  require_alike(hello, ours);
  return hello;
}

}  // namespace lockstep::parallel::tcp
