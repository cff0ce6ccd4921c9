#include "server/protocol/metrics_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <iterator>
#include <string_view>

namespace lockstep::server {

namespace {

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

class Page {
 public:
  explicit Page(const std::string& model_name)
      : labels_(fmt::format(R"(model_name="{}",engine="0")", label_value(model_name))) {}

  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    fmt::format_to(std::back_inserter(text_), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void value(double value, std::string_view labels = "", std::string_view suffix = "") {
    fmt::format_to(std::back_inserter(text_), "{}{}{{{}{}{}}} {}\n", name_, suffix, labels_, labels.empty() ? "" : ",",
                   labels, value);
  }
  void gauge(std::string_view name, double number, std::string_view help) {
    family(name, "gauge", help);
    value(number);
  }
  void counter(std::string_view name, int64_t count, std::string_view help) {
    family(fmt::format("{}_total", name), "counter", help);
    value(static_cast<double>(count));
  }
  void histogram(std::string_view name, const service::Histogram& counts, std::string_view help) {
    family(name, "histogram", help);
    for (size_t i = 0; i < counts.counts().size(); ++i) {
      const std::string bound = i < counts.bounds().size() ? fmt::format("{}", counts.bounds()[i]) : "+Inf";
      value(static_cast<double>(counts.counts()[i]), fmt::format(R"(le="{}")", bound), "_bucket");
    }
    value(counts.sum(), "", "_sum");
    value(static_cast<double>(counts.counts().back()), "", "_count");
  }
  std::string take() { return std::move(text_); }

 private:
  std::string labels_, name_, text_;
};

void add_state(Page& page, const service::ServingMetrics& metrics) {
  page.gauge("vllm:num_requests_running", static_cast<double>(metrics.running), "Samples being generated.");
  page.gauge("vllm:num_requests_waiting", static_cast<double>(metrics.waiting),
             "Samples waiting for their first token.");
  page.gauge("vllm:kv_cache_usage_perc", metrics.kv_cache_usage, "KV pool in use; 1 is all of it.");
  page.family("vllm:cache_config_info", "gauge", "The KV pool.");
  page.value(1, fmt::format(R"(num_gpu_blocks="{}")", metrics.kv_blocks));
  page.family("vllm:lora_requests_info", "gauge",
              "Adapters of running and waiting requests, at the time of the value.");
  page.value(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
             fmt::format(R"(max_lora="{}",waiting_lora_adapters="{}",running_lora_adapters="{}")", metrics.max_loras,
                         label_value(fmt::format("{}", fmt::join(metrics.waiting_adapters, ","))),
                         label_value(fmt::format("{}", fmt::join(metrics.running_adapters, ",")))));
}

void add_counters(Page& page, const service::ServingMetrics& metrics) {
  page.counter("vllm:prompt_tokens", metrics.prompt_tokens, "Tokens of prompts.");
  page.counter("vllm:generation_tokens", metrics.generation_tokens, "Tokens generated.");
  page.counter("vllm:prefix_cache_queries", metrics.prefix_queries, "Tokens looked for in the prefix cache.");
  page.counter("vllm:prefix_cache_hits", metrics.prefix_hits, "Tokens found in the prefix cache.");
  page.counter("vllm:num_preemptions", metrics.preemptions, "Samples that gave their blocks back and began again.");
  page.counter("lockstep:failed_steps", metrics.failed_steps,
               "Steps of the engine that failed and ended the requests in them.");
  page.counter("lockstep:failed_recordings", metrics.failed_recordings,
               "Decode steps that could not be recorded and ran without a CUDA graph.");
  page.family("vllm:request_success_total", "counter", "Samples that ended, by reason.");
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    const auto found = metrics.finished.find(reason);
    page.value(found == metrics.finished.end() ? 0 : static_cast<double>(found->second),
               fmt::format(R"(finished_reason="{}")", reason));
  }
}

void add_histograms(Page& page, const service::ServingMetrics& metrics) {
  page.histogram("vllm:time_to_first_token_seconds", metrics.time_to_first_token, "From arrival to the first token.");
  page.histogram("vllm:inter_token_latency_seconds", metrics.inter_token_latency, "Between tokens of a sample.");
  page.histogram("vllm:e2e_request_latency_seconds", metrics.e2e_request_latency, "From arrival to the last token.");
  page.histogram("vllm:request_queue_time_seconds", metrics.request_queue_time, "From arrival to the first step.");
  page.histogram("vllm:request_prefill_time_seconds", metrics.request_prefill_time,
                 "From the first step to the first token.");
  page.histogram("vllm:request_decode_time_seconds", metrics.request_decode_time, "From the first to the last token.");
  page.histogram("vllm:request_prompt_tokens", metrics.request_prompt_tokens, "Tokens of a prompt.");
  page.histogram("vllm:request_generation_tokens", metrics.request_generation_tokens, "Tokens of a sample.");
  page.histogram("vllm:iteration_tokens_total", metrics.iteration_tokens, "Tokens of a step.");
}

}  // namespace

std::string metrics_text(const service::ServingMetrics& metrics, const std::vector<versions::Policy>& adapters,
                         const std::string& model_name) {
  Page page(model_name);
  add_state(page, metrics);
  add_counters(page, metrics);
  add_histograms(page, metrics);
  page.counter("lockstep:engine_steps", metrics.steps, "Steps of the engine.");
  page.family("lockstep:engine_seconds_total", "counter", "Seconds in steps of the engine.");
  page.value(metrics.engine_seconds);
  page.family("lockstep:adapter_version", "gauge", "The newest version of each adapter.");
  for (const versions::Policy& adapter : adapters)
    page.value(static_cast<double>(adapter.newest()), fmt::format(R"(adapter="{}")", label_value(adapter.name)));
  page.family("lockstep:adapter_loaded_seconds", "gauge", "When each adapter's newest version was loaded (unix time).");
  for (const versions::Policy& adapter : adapters)
    page.value(static_cast<double>(adapter.published_at), fmt::format(R"(adapter="{}")", label_value(adapter.name)));
  return page.take();
}

}  // namespace lockstep::server
