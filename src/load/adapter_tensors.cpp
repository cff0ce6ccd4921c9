#include "load/adapter_tensors.h"

#include "checkpoint/peft_config.h"
#include "load/base_copies.h"
#include "model/adapter_extras.h"

namespace lockstep::load {

lora::AdapterVersion adapter_of_tensors(std::string_view config, const NamedTensors& tensors, const Base& base,
                                        const std::string& where) {
  const lora::LoraConfig wanted = checkpoint::parse_peft_config(config, where + ": config_dict");
  const auto layout = lora::resolve_layout(wanted, model::linear_modules(base.config));
  lora::check_ranks(*layout, base.stream->device());
  lora::check_tensors(*layout, tensors, where);
  check_base_copies(lora::base_copies(layout->config, tensors), rows_of(base), where);
  Buffer values = lora::import_tensors(*layout, tensors, where);
  lora::AdapterVersion adapter{
      .policy = {where, 0},
      .base = base.model->version(),
      .layout = layout,
      .weights = std::make_shared<const Buffer>(lora::place_weights(std::move(values), *layout, *base.stream))};
  return model::with_extras(std::move(adapter), base.model->weights(), *base.stream);
}

}  // namespace lockstep::load
