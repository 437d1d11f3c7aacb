/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tests of the module are worth what they catch. Built with switches.patch (adverb_broken.ko, never installed) it
 * takes a parameter that breaks one step; each value has a test that must then fail.
 */
#ifndef ADVERB_BREAKAGE_H
#define ADVERB_BREAKAGE_H

enum adverb_broken {
	ADVERB_BROKEN_NOTHING,
	ADVERB_BROKEN_SYNC,	/* no IOTLB sync */
	ADVERB_BROKEN_ORDER,	/* Leave clears the residency bits last, after a while */
	ADVERB_BROKEN_GAP,	/* retargets by unmap and map: a device can meet the hole */
	ADVERB_BROKEN_DIRTY,	/* Leave does not mark pages dirty */
	ADVERB_BROKEN_PARK,	/* Leave forgets the IOMMU entry */
	ADVERB_BROKEN_RETRY,	/* Enter does not look whether the page has left meanwhile */
	ADVERB_BROKEN_NOWAIT,	/* Leave refuses invalidations that must not block */
	ADVERB_BROKEN_FLUSH,	/* no IOTLB flush between a mapping's end and the freeing of its pages */
	ADVERB_BROKEN_READER,	/* a NIC in software moves bytes without the extent's lock, after a while */

	/* No mistake: what no test brings about at will, and one must see. */
	ADVERB_BROKEN_LEAVES, /* to Enter all pages have left meanwhile, however often it looks */

	/* Mistakes that only a debug kernel sees. */
	ADVERB_BROKEN_ALLOCATE = 20, /* Leave allocates under the extent's lock */
	ADVERB_BROKEN_LEAK,	     /* an extent's bitmaps are not freed */
	ADVERB_BROKEN_FREED,	     /* an extent is looked at after it was freed */
};

extern int adverb_broken;
#define adverb_breaks(what) (READ_ONCE(adverb_broken) == (what))

#endif
