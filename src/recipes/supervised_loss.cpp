#include "recipes/supervised_loss.h"

#include <fmt/format.h>

namespace lockstep::recipes {

namespace {

std::string reference_text(const SftOptions& options) {
  return ", the reference is " + (options.reference.empty() ? "the base" : options.reference);
}

}  // namespace

std::string loss_name(const train::Loss& loss) {
  if (std::holds_alternative<train::KtoLoss>(loss)) return "kto";
  const auto* pair = std::get_if<train::DpoLoss>(&loss);
  if (pair == nullptr) return "sft_loss";
  return pair->kind == train::PreferenceKind::sigmoid ? "dpo_loss" : train::preference_name(pair->kind);
}

OrderedJson loss_settings(const train::Loss& loss) {
  OrderedJson settings = {{"--loss-type", loss_name(loss)}, {"--dpo-beta", nullptr}};
  if (const auto* pair = std::get_if<train::DpoLoss>(&loss)) {
    settings["--dpo-beta"] = pair->beta;
    if (pair->gamma != train::DpoLoss().gamma) settings["--simpo-gamma"] = pair->gamma;
  }
  if (const auto* kto = std::get_if<train::KtoLoss>(&loss))
    settings.update({{"--dpo-beta", kto->beta},
                     {"--desirable-weight", kto->desirable_weight},
                     {"--undesirable-weight", kto->undesirable_weight}});
  return settings;
}

std::string describe_loss(const SftOptions& options) {
  if (const auto* kto = std::get_if<train::KtoLoss>(&options.loss))
    return fmt::format("KTO with beta {:g}, weights {:g} and {:g}{}", kto->beta, kto->desirable_weight,
                       kto->undesirable_weight, reference_text(options));
  if (const auto* pair = std::get_if<train::DpoLoss>(&options.loss))
    return fmt::format("{} with beta {:g}{}",
                       pair->kind == train::PreferenceKind::sigmoid ? "DPO" : train::preference_name(pair->kind),
                       pair->beta, train::reads_reference(*pair) ? reference_text(options) : "");
  return fmt::format("loss mean over {}",
                     options.training.per_token_loss ? "all tokens" : "samples of their token means");
}

}  // namespace lockstep::recipes
