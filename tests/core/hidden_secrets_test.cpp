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

TEST(HiddenSecrets, OtherTextsStayAsTheyAre) {
  for (const char* text : {"--tokenizer mistral --max-tokens 5", "http://h:80/x?monkeys=3", "a key is here", "key 5",
                           "--key-file k", "me@host", "models/arith"})
    EXPECT_EQ(hide_secrets(text), text);
}

}  // namespace
}  // namespace lockstep
