// Numbers of datums that all ranks hold, each rank computing those of its share.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "parallel/group.h"
#include "train/datum.h"
#include "train/row_scores.h"

namespace lockstep::train {

using RowsOf = std::function<std::vector<std::vector<float>>(std::span<const Datum>)>;

// rows_of(datums), whose result for a datum depends on that datum alone, so that the ranks' shares are what one rank
// would compute; every rank gets all. Collective: an error of one rank is thrown by all (parallel::agree). `group`
// nullptr: this rank alone.
std::vector<std::vector<float>> dealt_rows(parallel::Group* group, std::span<const Datum> datums,
                                           const RowsOf& rows_of);

// The same of all that a model says of rows: outputs_of(first, count) is asked for this rank's part of the datums.
using OutputsOf = std::function<std::vector<RowOutputs>(size_t first, size_t count)>;
std::vector<RowOutputs> dealt_outputs(parallel::Group* group, size_t num_datums, const OutputsOf& outputs_of);

}  // namespace lockstep::train
