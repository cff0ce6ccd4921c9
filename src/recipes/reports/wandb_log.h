// The transaction log of Weights & Biases (.wandb): records in blocks of 32 KiB, as LevelDB's log.
// Source: wandb/core/pkg/leveldb/record, wandb/sdk/internal/datastore.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::recipes {

// Header of the file; records begin behind it.
std::string wandb_log_header();
// What a record becomes when the file has `position` bytes.
std::string wandb_log_record(std::string_view data, uint64_t position);

struct WandbLogRecord {
  std::string data;
  uint64_t end = 0;  // of the file, behind it
};
// The whole records of a file's bytes; what is damaged or cut off ends them. Empty if it has another header.
std::vector<WandbLogRecord> read_wandb_log(std::string_view bytes);

}  // namespace lockstep::recipes
