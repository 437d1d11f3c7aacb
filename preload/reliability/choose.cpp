// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "reliability/choose.h"

namespace adverb::reliability {

Choice choose_scheme(const Transfer& transfer, std::span<const Scheme> from) noexcept {
  Choice chosen{from[0], mean_ns(transfer, from[0])};
  for (const Scheme& scheme : from.subspan(1)) {
    const double mean = mean_ns(transfer, scheme);
    if (mean < chosen.mean_ns * (1 - least_gain))
      chosen = {scheme, mean};
  }
  return chosen;
}

} // namespace adverb::reliability
