#include "versions/version_writer.h"

#include <utility>

#include "checkpoint/peft_directory.h"
#include "load/merge.h"
#include "versions/tensor_payload.h"

namespace lockstep::versions {

VersionWriter adapter_writer(CopyOptions options, Stream& stream) {
  return [options = std::move(options), &stream](const fs::Path& directory, const lora::AdapterVersion& version) {
    write_rollout_copy(directory, version, options, stream);
  };
}

VersionWriter merged_writer(const load::Base& base, Stream& stream, std::function<bool()> interrupted) {
  return [&base, &stream, interrupted = std::move(interrupted)](const fs::Path& directory,
                                                                const lora::AdapterVersion& version) {
    checkpoint::HfDirectory weights(base.path);
    weights.open_weights();
    fs::write_directory_atomic(directory, [&](const fs::Path& fresh) {
      const fs::Path aside = fresh / "adapter";
      {
        write_rollout_copy(aside, version, {.base_name = base.name, .exact = true}, stream);
        const load::AdapterFactors factors{checkpoint::PeftDirectory(aside)};
        load::Merge({}, weights, factors, stream).write(fresh, {.stopped = interrupted});
      }
      std::filesystem::remove_all(aside);
    });
  };
}

VersionWriter payload_writer(CopyOptions options, Stream& stream) {
  return [options = std::move(options), &stream](const fs::Path& directory, const lora::AdapterVersion& version) {
    fs::write_directory_atomic(directory, [&](const fs::Path& fresh) {
      const fs::Path aside = fresh / "adapter";
      write_rollout_copy(aside, version, options, stream);
      fs::write_file_atomic(fresh / kPayloadFile, tensor_payload(checkpoint::PeftDirectory(aside)));
      std::filesystem::remove_all(aside);
    });
  };
}

}  // namespace lockstep::versions
