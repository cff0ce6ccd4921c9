// What a row of training data holds, told by its keys.
#pragma once

#include "text/dataset.h"

namespace lockstep::text {

enum class RowShape {
  tokens,             // {"tokens": [...], "loss_mask": [...]}: text that was tokenized beforehand
  preference,         // {"chosen", "rejected"}, with "prompt" if it is not their common beginning
  messages,           // {"messages": [{"role", "content"}, ...]}
  prompt_completion,  // {"prompt", "completion"}: two strings, or two lists of messages
  text,               // {"text": "..."}: all of it is trained on
  prompt_label,       // {"prompt", "label"}, with "metadata" if any: an answer is sampled and rewarded
};
const char* row_shape_name(RowShape shape);  // "prompt + completion"

// The first of these shapes, in this order, whose keys the row has. A key that is null is not there: a Parquet file has
// every column in every row. Keys besides them are the caller's. The types of the values are checked here: DataError
// naming place, key and the types wanted; where no shape fits, the keys found and the shapes wanted.
RowShape row_shape(const Dataset& data, const Row& row);

// The value is a list of messages: objects with "role" and more. Else it is a string, or row_shape() refused it.
bool is_conversation(const OrderedJson& value);

}  // namespace lockstep::text
