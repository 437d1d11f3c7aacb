// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Choosing combinations of factors. A row holds one level (0…levels[f]-1) for each factor f.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verify {

using Rows = std::vector<std::vector<int>>;

// Rows in which every pair of levels of two factors occurs at least once; the same seed gives the
// same rows.
Rows pairwise_sample(const std::vector<int>& levels, uint64_t seed);

// Many rows with factor `fixed` at `level`: every triple that the row number can enumerate of the
// next three factors, the others drawn.
Rows wide_sample(const std::vector<int>& levels, int fixed, int level, uint64_t seed);

} // namespace verify
