#include "checkpoint/peft_keys.h"

#include <algorithm>

namespace lockstep::checkpoint {

namespace {

constexpr std::string_view kMergeFirst =
    "merge it into its base with PEFT (merge_and_unload) and use the model that comes out";
constexpr std::string_view kServeThere =
    "the program that made it: a prompt is no change of weights and cannot be merged";

constexpr PeftKey kKeys[] = {
    {"alora_invocation_tokens", KeyUse::refused, "LoRA that begins at certain tokens", kMergeFirst},
    {"alpha_pattern", KeyUse::used, "alpha of modules by regular expressions, the first that matches", ""},
    {"arrow_config", KeyUse::refused, "routing between several adapters", "one of the adapters by itself"},
    {"auto_mapping", KeyUse::ignored, "Python classes of the model", ""},
    {"base_model_name_or_path", KeyUse::used, "the base's name, kept for messages and exports", ""},
    {"bias", KeyUse::used, "which biases of the base the adapter brings along: none, lora_only, all", ""},
    {"corda_config", KeyUse::ignored, "settings of the initialization corda, which is refused by init_lora_weights",
     ""},
    {"ensure_weight_tying", KeyUse::refused, "one adapter for the embedding and the head that is tied to it",
     "PEFT's default, false: the head and the embedding each with their own"},
    {"eva_config", KeyUse::ignored, "settings of the initialization eva, which leaves the base as it is", ""},
    {"exclude_modules", KeyUse::used, "modules left out: a list of names, or a regular expression of whole names", ""},
    {"fan_in_fan_out", KeyUse::ignored, "transposed weights of GPT-2; PEFT too sets it to false for linear layers", ""},
    {"inference_mode", KeyUse::ignored, "whether PEFT freezes the adapter when it reads it", ""},
    {"init_lora_weights", KeyUse::used,
     "what the factors began as; pissa, olora, corda, loftq and lora_ga belong to a changed base", ""},
    {"kasa_config", KeyUse::refused, "KaSA", kMergeFirst},
    {"layer_replication", KeyUse::refused, "a model of repeated layers of its base", kMergeFirst},
    {"layers_pattern", KeyUse::used, "what stands before the number of a layer in names, for layers_to_transform", ""},
    {"layers_to_transform", KeyUse::used, "the layers that have an adapter, a number or a list", ""},
    {"loftq_config", KeyUse::ignored, "settings of the initialization loftq, which is refused by init_lora_weights",
     ""},
    {"lora_alpha", KeyUse::used, "alpha: updates are scaled by alpha / r", ""},
    {"lora_bias", KeyUse::refused, "a bias of B", kMergeFirst},
    {"lora_dropout", KeyUse::used,
     "dropout of what A reads, in training of a run that asks for no other; what it trains with is what it saves", ""},
    {"lora_ga_config", KeyUse::ignored, "settings of the initialization lora_ga, which is refused by init_lora_weights",
     ""},
    {"megatron_config", KeyUse::refused, "layers of Megatron-LM", "convert, which takes Megatron's names to PEFT's"},
    {"megatron_core", KeyUse::ignored, "the Python module of Megatron-LM", ""},
    {"modules_to_save", KeyUse::used, "modules trained whole, in copies of the adapter's own: lm_head, embed_tokens",
     ""},
    {"monteclora_config", KeyUse::refused, "MonteCLoRA", kMergeFirst},
    {"peft_type", KeyUse::used, "LORA; every other type is refused by name", ""},
    {"peft_version", KeyUse::ignored, "the version of PEFT that wrote the file", ""},
    {"qalora_group_size", KeyUse::ignored, "group size of QA-LoRA, which is refused by use_qalora", ""},
    {"r", KeyUse::used, "the rank", ""},
    {"rank_pattern", KeyUse::used, "ranks of modules by regular expressions, the first that matches", ""},
    {"revision", KeyUse::ignored, "the revision of the base on the hub", ""},
    {"runtime_config", KeyUse::ignored, "how PEFT uses its devices", ""},
    {"target_modules", KeyUse::used, "modules with an adapter: names, a regular expression of whole names, all-linear",
     ""},
    {"target_parameters", KeyUse::refused, "adapters of parameters that are no linear layer (experts)", kMergeFirst},
    {"task_type", KeyUse::used,
     "CAUSAL_LM or null; TOKEN_CLS of one label is a critic; heads of other tasks are refused", ""},
    {"trainable_token_indices", KeyUse::refused, "rows of the embedding trained one by one",
     "modules_to_save [\"embed_tokens\"], which trains all of them"},
    {"use_bdlora", KeyUse::refused, "BD-LoRA", kMergeFirst},
    {"use_dora", KeyUse::used, "DoRA: a trained magnitude for each row", ""},
    {"use_qalora", KeyUse::refused, "QA-LoRA", kMergeFirst},
    {"use_rslora", KeyUse::used, "updates are scaled by alpha / sqrt(r)", ""},
    {"velora_config", KeyUse::refused, "VeLoRA", "train without it: it changes how gradients are kept"},
};
static_assert(std::ranges::is_sorted(kKeys, {}, &PeftKey::name));

constexpr PeftType kOtherTypes[] = {
    {"ADALORA", kMergeFirst},
    {"ADAMSS", kMergeFirst},
    {"ADAPTION_PROMPT", kServeThere},
    {"BEFT", kMergeFirst},
    {"BOFT", kMergeFirst},
    {"BONE", kMergeFirst},
    {"C3A", kMergeFirst},
    {"CPT", kServeThere},
    {"DEFT", kMergeFirst},
    {"DELORA", kMergeFirst},
    {"FOURIERFT", kMergeFirst},
    {"FROD", kMergeFirst},
    {"GLORA", kMergeFirst},
    {"GRALORA", kMergeFirst},
    {"HIRA", kMergeFirst},
    {"HRA", kMergeFirst},
    {"IA3", kMergeFirst},
    {"LILY", kMergeFirst},
    {"LN_TUNING", kMergeFirst},
    {"LOHA", kMergeFirst},
    {"LOKR", kMergeFirst},
    {"MISS", kMergeFirst},
    {"MULTITASK_PROMPT_TUNING", kServeThere},
    {"OFT", kMergeFirst},
    {"OSF", kMergeFirst},
    {"POLY", kMergeFirst},
    {"PREFIX_TUNING", kServeThere},
    {"PROMPT_TUNING", kServeThere},
    {"PVERA", kMergeFirst},
    {"P_TUNING", kServeThere},
    {"RANDLORA", kMergeFirst},
    {"ROAD", kMergeFirst},
    {"SHIRA", kMergeFirst},
    {"TRAINABLE_TOKENS", kMergeFirst},
    {"UNILORA", kMergeFirst},
    {"VBLORA", kMergeFirst},
    {"VERA", kMergeFirst},
    {"WAVEFT", kMergeFirst},
    {"XLORA", "one of the adapters by itself"},
};

}  // namespace

std::span<const PeftKey> peft_keys() {
  return kKeys;
}

const PeftKey* find_peft_key(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kKeys, name, {}, &PeftKey::name);
  return found != std::end(kKeys) && found->name == name ? found : nullptr;
}

std::span<const PeftType> other_peft_types() {
  return kOtherTypes;
}

}  // namespace lockstep::checkpoint
