// What launchers say in environment variables, and the options of lockstep launch.
#include <fcntl.h>
#include <unistd.h>

#include <map>

#include "app/arguments.h"
#include "cli/job.h"
#include "cli/launcher_variables.h"
#include "cli/parse.h"

namespace lockstep::cli {
namespace {

Variables given(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

parallel::Launch launch_in(std::map<std::string, std::string> values) {
  const std::optional<Launched> launched = launched_by(given(std::move(values)));
  return launched ? launched->launch : parallel::Launch{.size = 0};
}

TEST(LauncherVariables, NoneIsOneProcess) {
  EXPECT_FALSE(launched_by(given({})));
  EXPECT_FALSE(launched_by(given({{"SLURM_PROCID", "0"}})));  // a batch script
  EXPECT_FALSE(launched_by(given({{"RANK", "0"}, {"WORLD_SIZE", "1"}})));
  EXPECT_FALSE(launched_by(given({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})));
}

TEST(LauncherVariables, EveryLauncherIsUnderstood) {
  const parallel::Launch torch = launch_in({{"RANK", "5"},
                                            {"WORLD_SIZE", "8"},
                                            {"LOCAL_RANK", "1"},
                                            {"LOCAL_WORLD_SIZE", "4"},
                                            {"MASTER_ADDR", "node0"},
                                            {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torch.rank, 5);
  EXPECT_EQ(torch.size, 8);
  EXPECT_EQ(torch.local_rank, 1);
  EXPECT_EQ(torch.local_size, 4);
  EXPECT_EQ(torch.master, "node0");
  EXPECT_EQ(torch.port, 29500);
  const parallel::Launch mpi = launch_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                          {"PMIX_NAMESPACE", "123"}});
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.master, "127.0.0.1");
  EXPECT_GE(mpi.port, 20000);
  EXPECT_LT(mpi.port, 30000);
  EXPECT_EQ(mpi.job, "123");
  const parallel::Launch slurm = launch_in({{"SLURM_PROCID", "3"},
                                            {"SLURM_STEP_NUM_TASKS", "8"},
                                            {"SLURM_LOCALID", "3"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                            {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                                            {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(slurm.rank, 3);
  EXPECT_EQ(slurm.local_size, 4);
  EXPECT_EQ(slurm.master, "gpu07");
  EXPECT_EQ(launch_in({{"SLURM_PROCID", "0"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                       {"SLURM_STEP_NODELIST", "a,b[1-3]"},
                       {"SLURM_JOB_ID", "7"}})
                .master,
            "a");
}

std::map<std::string, std::string> slurm_step(const std::string& tasks, const std::string& size) {
  return {{"SLURM_PROCID", "0"},          {"SLURM_STEP_NUM_TASKS", size},
          {"SLURM_LOCALID", "0"},         {"SLURM_STEP_TASKS_PER_NODE", tasks},
          {"SLURM_STEP_NODELIST", "a,b"}, {"SLURM_JOB_ID", "77"}};
}

TEST(LauncherVariables, HostsOfAStepMayHaveDifferentNumbersOfTasks) {
  const auto local_sizes = [](const std::string& tasks, const std::string& size, int hosts) {
    std::vector<int> sizes;
    for (int host = 0; host < hosts; ++host) {
      auto variables = slurm_step(tasks, size);
      variables["SLURM_NODEID"] = std::to_string(host);
      sizes.push_back(launch_in(variables).local_size);
    }
    return sizes;
  };
  EXPECT_EQ(local_sizes("3,1", "4", 2), (std::vector{3, 1}));
  EXPECT_EQ(local_sizes("2,1", "3", 2), (std::vector{2, 1}));
  EXPECT_EQ(local_sizes("2(x2),1", "5", 3), (std::vector{2, 2, 1}));
  EXPECT_EQ(local_sizes("1,3(x2),4", "11", 4), (std::vector{1, 3, 3, 4}));
  EXPECT_EQ(local_sizes("8(x64)", "512", 64), std::vector(64, 8));
  EXPECT_EQ(launch_in(slurm_step("4(x2)", "8")).local_size, 4) << "whichever host this is";
  for (const char* tasks : {"3,1", "2(x2),1", "4(2)", "4(x2", "4(x)", "4,", ",4", "", "0"})
    EXPECT_THROW(launched_by(given(slurm_step(tasks, "4"))), ConfigError) << tasks;
  auto beyond = slurm_step("3,1", "4");
  beyond["SLURM_NODEID"] = "2";
  EXPECT_THROW(launched_by(given(beyond)), ConfigError);
}

TEST(LauncherVariables, StepsOfOneJobMeetAtDifferentPorts) {
  const auto launch = [](const std::string& step) {
    auto variables = slurm_step("1(x2)", "2");
    variables["SLURM_STEP_ID"] = step;
    return launch_in(variables);
  };
  EXPECT_NE(launch("0").port, launch("1").port);
  EXPECT_NE(launch("0").job, launch("1").job);
  EXPECT_EQ(launch("0").port, launch("0").port);
}

TEST(LauncherVariables, RanksDoNotMeetWhereTorchrunItselfListens) {
  const auto launch = [](const char* rank, const char* port) {
    return launch_in({{"RANK", rank},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "localhost"},
                      {"MASTER_PORT", port},
                      {"TORCHELASTIC_RUN_ID", "none"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  };
  EXPECT_NE(launch("0", "29500").port, 29500);
  EXPECT_EQ(launch("0", "29500").port, launch("1", "29500").port);
  EXPECT_EQ(launch("0", "29500").job, launch("1", "29500").job);
  EXPECT_NE(launch("0", "29500").port, launch("0", "29501").port) << "of another job";
}

TEST(LauncherVariables, WhatCannotBeTrueIsRefused) {
  using Map = std::map<std::string, std::string>;
  for (const Map& values :
       {Map{{"RANK", "one"}, {"WORLD_SIZE", "2"}}, Map{{"RANK", "0"}, {"WORLD_SIZE", "2"}},  // no port
        Map{{"RANK", "0"}}, Map{{"WORLD_SIZE", "2"}},                                        // half
        Map{{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}},
        Map{{"RANK", "0"},
            {"WORLD_SIZE", "2"},
            {"MASTER_PORT", "29500"},
            {"OMPI_COMM_WORLD_RANK", "1"},
            {"OMPI_COMM_WORLD_SIZE", "2"}},
        Map{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}})
    EXPECT_THROW(launched_by(given(values)), ConfigError);
}

TEST(LauncherVariables, TheSecretComesThroughAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const std::string secret(32, 's');
  ASSERT_EQ(::write(ends[1], secret.data(), secret.size()), 32);
  const auto launched = launched_by(given(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}, {"LOCKSTEP_SECRET_FD", std::to_string(ends[0])}}));
  ASSERT_TRUE(launched && launched->secret);
  EXPECT_EQ((*launched->secret)[31], std::byte{'s'});
  EXPECT_EQ(launched->launch.lifeline_fd, ends[0]);
  // A second program that is started in the same place finds nothing, and does not wait for it.
  EXPECT_THROW(launched_by(given({{"RANK", "0"},
                                  {"WORLD_SIZE", "2"},
                                  {"MASTER_PORT", "29500"},
                                  {"LOCKSTEP_SECRET_FD", std::to_string(ends[0])}})),
               ConfigError);
  ::close(ends[0]);
  ::close(ends[1]);
}

// With the variables of a launcher that cannot hand a secret to other hosts, and without --job-secret-file.
TEST(LauncherVariables, RanksOfSeveralHostsNeedTheSecretFile) {
  using Map = std::map<std::string, std::string>;
  const auto becomes_rank = [](const Map& values) {
    const Console console;
    std::ostringstream nowhere;
    recipes::BaseOptions base{.device = "cpu"};
    recipes::TrainingOptions training;
    recipes::Control control{.out = &nowhere, .info = &nowhere};
    try {
      become_rank(launched_by(given(values)).value(), base, training, console, nowhere, control);
      return std::string("nothing");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  const auto rank_of_two = [](const std::string& on_this_host, const std::string& master) {
    return Map{{"RANK", "0"},
               {"WORLD_SIZE", "2"},
               {"LOCAL_WORLD_SIZE", on_this_host},
               {"MASTER_ADDR", master},
               {"MASTER_PORT", "29500"}};
  };
  const Map mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                   {"MASTER_ADDR", "node0"},
                   {"MASTER_PORT", "29500"}};
  for (const Map& values : {rank_of_two("1", "node0"), rank_of_two("1", "127.0.0.1"), rank_of_two("2", "node0"), mpi,
                            slurm_step("1(x2)", "2")}) {
    const std::string error = becomes_rank(values);
    EXPECT_NE(error.find("ranks on several hosts need the job's secret"), std::string::npos) << error;
    EXPECT_NE(error.find("--job-secret-file"), std::string::npos) << error;
  }
  EXPECT_EQ(becomes_rank(rank_of_two("2", "127.0.0.1")), "nothing");
}

TEST(LaunchOptions, WhatFollowsIsTheCommandAsItStands) {
  const auto parsed = [](const Values& args) { return parse_launch(args); };
  const commands::LaunchOptions options =
      parsed({"-n", "4", "--grace", "2.5", "sft", "-n", "--num-ranks", "7", "--grace=x"});
  EXPECT_EQ(options.ranks, 4);
  EXPECT_EQ(options.grace, std::chrono::milliseconds(2500));
  EXPECT_EQ(options.command, (Values{"sft", "-n", "--num-ranks", "7", "--grace=x"}));
  EXPECT_EQ(parsed({"--num-ranks=2", "--", "sh", "-c", "x"}).command, (Values{"sh", "-c", "x"}));
  EXPECT_TRUE(parsed({"-n", "2"}).command.empty());
  EXPECT_THROW(parsed({"-n", "0", "sft"}), ConfigError);
  EXPECT_THROW(parsed({"-n"}), ConfigError);
  EXPECT_THROW(parsed({"--nodes", "2", "sft"}), ConfigError);
}

TEST(LaunchOptions, SeveralHostsNeedASecretAPortAndAnAddress) {
  std::ostringstream out;
  const auto refused = [&](const Values& args) {
    try {
      commands::run_launch(parse_launch(args), {.out = &out, .info = &out});
      return std::string("nothing");
    } catch (const ConfigError& error) {
      return error.fault().where;
    }
  };
  EXPECT_EQ(refused({"-n", "1"}), "lockstep launch");
  EXPECT_EQ(refused({"--num-nodes", "2", "--node-rank", "2", "true"}), "--node-rank");
  EXPECT_EQ(refused({"--num-nodes", "2", "true"}), "--job-secret-file");
  EXPECT_EQ(refused({"--num-nodes", "2", "--job-secret-file", "f", "true"}), "--master-port");
  EXPECT_EQ(refused({"--num-nodes", "2", "--job-secret-file", "f", "--master-port", "1", "true"}), "--master-addr");
}

}  // namespace
}  // namespace lockstep::cli
