#include "text/jinja/template.h"

#include "core/error.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"

namespace lockstep::text::jinja {

namespace {

Value from_json(Runtime& runtime, const OrderedJson& json) {
  const Runtime::Level level(runtime);
  runtime.step();
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer: return Value(Int{json.get<int64_t>()});
    case OrderedJson::value_t::number_unsigned: return Value(Int{json.get<uint64_t>()});
    case OrderedJson::value_t::number_float: return Value(json.get<double>());
    case OrderedJson::value_t::string: return runtime.text(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      Values items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(from_json(runtime, item));
      return runtime.row(std::move(items));
    }
    case OrderedJson::value_t::object: {
      Pairs items;
      items.reserve(json.size());
      for (const auto& [key, item] : json.items()) items.emplace_back(runtime.text(key), from_json(runtime, item));
      return runtime.dict(std::move(items));
    }
    default: return Value::none();
  }
}

}  // namespace

Template Template::parse(std::string_view source, const std::string& where) {
  constexpr size_t kLongest = size_t{1} << 20;
  if (source.size() > kLongest)
    throw FormatError({.what = "the template is too long",
                       .where = where,
                       .got = std::to_string(source.size()) + " bytes",
                       .wanted = "at most " + std::to_string(kLongest)});
  Template made;
  made.tree_ = jinja::parse(source, where);
  made.where_ = where;
  return made;
}

Rendering Template::render(const OrderedJson& variables, const RenderOptions& options) const {
  Runtime runtime(where_, options.limits, options.now);
  std::map<std::string, Value> context;
  for (const auto& [name, value] : variables.items()) context.emplace(name, from_json(runtime, value));
  Evaluator evaluator(tree_, runtime, context);
  evaluator.run();
  return {std::move(evaluator.output), std::move(evaluator.generation_spans)};
}

}  // namespace lockstep::text::jinja
