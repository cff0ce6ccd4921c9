#include "core/hidden_secrets.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(HiddenSecrets, AreToldByTheirNames) {
  EXPECT_EQ(hide_secrets("vllm serve --api-key hunter2 --port 80"), "vllm serve --api-key *** --port 80");
  EXPECT_EQ(hide_secrets("sh -c '--admin-api-key=hunter2'"), "sh -c '--admin-api-key=***'");
  EXPECT_EQ(hide_secrets("HF_TOKEN=hunter2 serve --password \"a b\""), "HF_TOKEN=*** serve --password ***");
  EXPECT_EQ(hide_secrets("http://h/x?key=hunter2&n=1"), "http://h/x?key=***&n=1");
  EXPECT_EQ(hide_secrets("http://user:hunter2@h:80/x"), "http://***@h:80/x");
}

// One list for flags and texts. A flag that ends in key is a secret unless it is known to name a key of a row.
TEST(HiddenSecrets, NamesAreOneList) {
  for (const char* name : {"--api-key", "--rm-api-key", "--rollout-engine-api-key", "--wandb-key", "API_KEY",
                           "HF_TOKEN", "key", "password", "--new-key"})
    EXPECT_TRUE(names_a_secret(name)) << name;
  for (const char* name : {"--label-key", "--eval-input-key", "--opd-teacher-key", "--tool-key", "--tokenizer", "keys"})
    EXPECT_FALSE(names_a_secret(name)) << name;
}

TEST(HiddenSecrets, OtherTextsStayAsTheyAre) {
  for (const char* text : {"--tokenizer mistral --max-tokens 5", "http://h:80/x?monkeys=3", "a key is here", "key 5",
                           "--key-file k", "--label-key answer", "me@host", "models/arith"})
    EXPECT_EQ(hide_secrets(text), text);
}

TEST(HiddenSecrets, AreToldByTheirValues) {
  EXPECT_EQ(hide_values("hunter2 and hunter2", {"hunter2"}), "*** and ***");
  EXPECT_EQ(hide_values("no \"Bearer k-1234\", no dTpwdw==", {"k-1234", "dTpwdw=="}), "no \"Bearer ***\", no ***");
  EXPECT_EQ(hide_values("a key", {"", "key", "other"}), "a key");
}

}  // namespace
}  // namespace lockstep
