// SPDX-License-Identifier: GPL-2.0
/* What the module counts: per region, and over all of them since it was loaded. */
#include <linux/atomic.h>

#include "adverb.h"

atomic64_t adverb_totals[ADVERB_COUNTER_COUNT];

/**
 * adverb_count - count something for a region and for the module
 * @region: whose it is
 * @counter: what
 * @n: how many; 0 costs nothing
 *
 * Any context, any locks.
 */
void adverb_count(struct adverb_region *region, enum adverb_counter counter, u64 n)
{
	if (!n)
		return;
	atomic64_add(n, &region->counts[counter]);
	atomic64_add(n, &adverb_totals[counter]);
}
