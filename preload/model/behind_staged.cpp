// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "model/behind_staged.h"
#include "model/cq.h"
#include "model/objects.h"
#include "model/qp.h"
#include "model/srq.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace adverb::model {

namespace {

using registration::ReceivePlace;

// Where its elements' bytes are to be; those that name no region's the device refuses.
std::vector<ReceivePlace> places_of(const ReceiveQueue& queue, const ibv_recv_wr& wr) {
  std::vector<ReceivePlace> places;
  for (const ibv_sge& sge : std::span(wr.sg_list, static_cast<size_t>(wr.num_sge)))
    if (registration::Span span;
        sge.length != 0 &&
        queue.context().regions().local(queue.pd(), sge, IBV_ACCESS_LOCAL_WRITE, span) == 0)
      places.push_back({reinterpret_cast<uintptr_t>(span.data), sge.length});
  return places;
}

// The device fills them one after the other.
bool meet_each_other(const std::vector<ReceivePlace>& places) {
  for (size_t i = 0; i < places.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (places[i].meets(places[j].start, places[j].bytes))
        return true;
  return false;
}

// Whether a queue says so of one of the places.
template <typename Says>
bool any_says(World& world, const std::vector<ReceivePlace>& places, Says&& says) {
  const auto by = [&](const auto& queue) {
    return std::ranges::any_of(places,
                               [&](const ReceivePlace& place) { return says(*queue, place); });
  };
  return std::ranges::any_of(world.objects().qps.all(), by) ||
         std::ranges::any_of(world.objects().srqs.all(), by);
}

bool awaited(World& world, const std::vector<ReceivePlace>& places) {
  return any_says(world, places, [](auto& queue, const ReceivePlace& place) {
    return queue.awaits_copy(place.start, place.bytes);
  });
}

bool placed_by_others(World& world, const std::vector<ReceivePlace>& places,
                      const ReceiveQueue& mine) {
  return any_says(world, places, [&](auto& queue, const ReceivePlace& place) {
    return queue.awaits_placing(place.start, place.bytes, mine);
  });
}

} // namespace

BehindStaged::Counted::Counted(World& world, const ReceiveQueue& queue, const ibv_recv_wr& wr)
    : places(places_of(queue, wr)), receives_(world.staged_receives()) {
  for (const ReceivePlace& place : places) {
    receives_.add(place);
    receives_.placed().add(place, queue.number());
  }
}

BehindStaged::Counted::~Counted() {
  for (const ReceivePlace& place : places) {
    receives_.remove(place);
    receives_.placed().remove(place);
  }
}

BehindStaged::BehindStaged(const ReceiveQueue& queue, const ibv_recv_wr& wr)
    : world_(queue.context().world()), alone_(world_.objects().posting), mine_(world_, queue, wr) {
  if (!has_to_wait())
    return;
  if (placed_by_others(world_, mine_.places, queue)) {
    error_ = ENOMEM;
    if (world_.log.every("receive-between", 10))
      world_.log.error("a receive cannot be posted: an earlier message is still to be copied to "
                       "the same memory, and a receive of another queue pair may fill it first; "
                       "poll first, or post no receives of several queue pairs that overlap");
    return;
  }
  memory::Range all{UINTPTR_MAX, 0};
  for (const ReceivePlace& place : mine_.places) {
    all.from = std::min(all.from, place.start);
    all.to = std::max<uintptr_t>(all.to, place.start + place.bytes);
  }
  calm_.emplace(world_, all, std::chrono::seconds(1));
}

bool BehindStaged::has_to_wait() const {
  if (meet_each_other(mine_.places))
    return true;
  if (!awaited(world_, mine_.places))
    return false;
  for (const auto& cq : world_.objects().cqs.all())
    cq->settle();
  return awaited(world_, mine_.places);
}

} // namespace adverb::model
