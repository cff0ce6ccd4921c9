#include "core/base64.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Base64, IsThatOfTheStandard) {  // RFC 4648, section 10, and RFC 7617
  for (const auto& [bytes, text] : {std::pair("", ""),
                                    {"f", "Zg=="},
                                    {"fo", "Zm8="},
                                    {"foo", "Zm9v"},
                                    {"foobar", "Zm9vYmFy"},
                                    {"Aladdin:open sesame", "QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}})
    EXPECT_EQ(base64(bytes), text);
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace lockstep
