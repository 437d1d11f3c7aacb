/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Tracepoints, in events/adverb of tracefs: how long a page's leaving keeps the kernel, and what an attachment costs.
 * Times are in nanoseconds, and taken only while somebody listens.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM adverb

#if !defined(ADVERB_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define ADVERB_TRACE_H

#include <linux/tracepoint.h>

#include "adverb.h"

/* An invalidation has been answered: nothing of the range is shown any more. */
TRACE_EVENT(adverb_leave,
	TP_PROTO(const struct adverb_extent *extent, unsigned long start, unsigned long end, unsigned int event,
		 unsigned int pages, u64 ns),
	TP_ARGS(extent, start, end, event, pages, ns),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(unsigned int, event)
		__field(unsigned int, pages)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->region = extent->region->number;
		__entry->start = start;
		__entry->end = end;
		__entry->event = event;
		__entry->pages = pages;
		__entry->ns = ns;
	),
	TP_printk("region=%u start=%#lx end=%#lx event=%u pages=%u ns=%llu", __entry->region, __entry->start,
		  __entry->end, __entry->event, __entry->pages, __entry->ns)
);

/* Pages have come, each to some of the views. */
TRACE_EVENT(adverb_enter,
	TP_PROTO(const struct adverb_extent *extent, unsigned long start, unsigned long count, unsigned int views,
		 unsigned int shown),
	TP_ARGS(extent, start, count, views, shown),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(unsigned long, start)
		__field(unsigned long, count)
		__field(unsigned int, views)
		__field(unsigned int, shown)
	),
	TP_fast_assign(
		__entry->region = extent->region->number;
		__entry->start = start;
		__entry->count = count;
		__entry->views = views;
		__entry->shown = shown;
	),
	TP_printk("region=%u start=%#lx pages=%lu views=%#x shown=%u", __entry->region, __entry->start,
		  __entry->count, __entry->views, __entry->shown)
);

/* An IOMMU entry names another page. */
TRACE_EVENT(adverb_retarget,
	TP_PROTO(const struct adverb_mapping *mapping, unsigned long address, dma_addr_t iova, bool parked),
	TP_ARGS(mapping, address, iova, parked),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(unsigned int, view)
		__field(unsigned long, address)
		__field(u64, iova)
		__field(bool, parked)
	),
	TP_fast_assign(
		__entry->region = mapping->extent->region->number;
		__entry->view = mapping->view;
		__entry->address = address;
		__entry->iova = iova;
		__entry->parked = parked;
	),
	TP_printk("region=%u view=%u address=%#lx iova=%#llx %s", __entry->region, __entry->view,
		  __entry->address, __entry->iova, __entry->parked ? "parked" : "shown")
);

/* The IOMMUs have forgotten what a batch of entries named. */
TRACE_EVENT(adverb_sync,
	TP_PROTO(const struct adverb_extent *extent, unsigned int entries, unsigned int syncs, u64 ns),
	TP_ARGS(extent, entries, syncs, ns),
	TP_STRUCT__entry(
		__field(u32, region)
		__field(unsigned int, entries)
		__field(unsigned int, syncs)
		__field(u64, ns)
	),
	TP_fast_assign(
		__entry->region = extent->region->number;
		__entry->entries = entries;
		__entry->syncs = syncs;
		__entry->ns = ns;
	),
	TP_printk("region=%u entries=%u syncs=%u ns=%llu", __entry->region, __entry->entries, __entry->syncs,
		  __entry->ns)
);

/* A device has a view, or is refused; error: an errno as a negative number. */
TRACE_EVENT(adverb_attach,
	TP_PROTO(struct device *dev, const struct adverb_extent *extent, unsigned int view, int error, u64 ns),
	TP_ARGS(dev, extent, view, error, ns),
	TP_STRUCT__entry(
		__string(device, dev_name(dev))
		__field(u32, region)
		__field(unsigned int, view)
		__field(unsigned long, start)
		__field(unsigned long, end)
		__field(int, error)
		__field(u64, ns)
	),
	TP_fast_assign(
		__assign_str(device);
		__entry->region = extent->region->number;
		__entry->view = view;
		__entry->start = extent->start;
		__entry->end = extent->end;
		__entry->error = error;
		__entry->ns = ns;
	),
	TP_printk("device=%s region=%u view=%u start=%#lx end=%#lx error=%d ns=%llu", __get_str(device),
		  __entry->region, __entry->view, __entry->start, __entry->end, __entry->error, __entry->ns)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
