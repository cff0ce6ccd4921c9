// The files of the page, which the build takes from app/server/dashboard/page.
#pragma once

#include <span>
#include <string_view>

namespace lockstep::server {

struct PageFile {
  std::string_view path;  // "/" is index.html
  std::string_view type;  // of its content
  std::string_view bytes;
};
std::span<const PageFile> page_files();

}  // namespace lockstep::server
