// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/message_lane.h"
#include "world/world.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace adverb::transfer {

using observe::Counter;
using steering::Request;
using steering::Stage;

void MessageLane::join(std::shared_ptr<Initiator> initiator, uint64_t handle, uint64_t remote) {
  initiator_ = std::move(initiator);
  target_gone_ = has_sent_ahead_ = false;
  takes_ahead_ = true;
  handle_ = handle;
  remote_ = remote;
}

std::shared_ptr<Initiator> MessageLane::leave() {
  commit();
  asked_.reset();
  leasing_ = 0;
  return std::move(initiator_);
}

RequestHeader MessageLane::header(const Request& r, Kind kind) const {
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(kind);
  h.run = run_;
  h.target = remote_;
  h.source = handle_;
  h.request = r.seq;
  return h;
}

std::byte* MessageLane::begin(size_t payload, size_t brings) {
  const size_t most = initiator_->shared_max();
  const auto one_more = [&] {
    return Open{open_.message, next_place(open_.bytes) + sizeof(RequestHeader) + payload,
                next_place(open_.brings) + sizeof(ReplyHeader) + brings};
  };
  if (begun_ = one_more(); begun_.bytes > most || begun_.brings > most) {
    commit();
    begun_ = one_more();
  }
  if (open_.message == nullptr)
    open_.message = begun_.message = initiator_->begin(handle_);
  return open_.message == nullptr ? nullptr : open_.message + next_place(open_.bytes);
}

void MessageLane::put(std::byte* part, const RequestHeader& h) {
  memcpy(part, &h, sizeof h);
  open_ = begun_;
  // One that none can join goes while the next is made.
  const size_t most = initiator_->shared_max();
  if (next_place(open_.bytes) + sizeof h > most ||
      next_place(open_.brings) + sizeof(ReplyHeader) > most)
    send_open();
}

// One that was begun for a request whose elements were not good is empty.
void MessageLane::send_open() {
  const Open open = std::exchange(open_, {});
  if (open.bytes != 0)
    initiator_->send(open.message, open.bytes);
  else
    initiator_->cancel(handle_, open.message);
}

void MessageLane::send(Request& r, MessageWay& owner, std::byte* part, const RequestHeader& h) {
  r.become(steering::Event::sent);
  r.owner = &owner;
  r.run = run_;
  ++r.parts;
  took(r.wr.opcode);
  put(part, h);
}

void MessageLane::send_aside(Request& r, MessageWay& owner, std::byte* part,
                             const RequestHeader& h) {
  r.owner = &owner;
  r.run = run_;
  r.asked = true;
  put(part, h);
}

// A message for one that shares none, because it is ordered with no other.
std::byte* MessageLane::begin_alone() {
  commit();
  return initiator_->begin(handle_);
}

bool MessageLane::tell(Kind kind, uint64_t address) {
  std::byte* message = begin_alone();
  if (message == nullptr)
    return false;
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(kind);
  h.run = run_;
  h.target = remote_;
  h.source = handle_;
  h.address = address;
  memcpy(message, &h, sizeof h);
  initiator_->send(message, sizeof h);
  return true;
}

void MessageLane::ask_key(uint32_t rkey) {
  if (asked_)
    return;
  std::byte* message = begin_alone();
  if (message == nullptr)
    return;
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(Kind::query);
  h.run = run_;
  h.target = remote_;
  h.source = handle_;
  h.key = rkey;
  memcpy(message, &h, sizeof h);
  asked_ = rkey;
  initiator_->send(message, sizeof h);
  world_.counters.count(Counter::key_queries);
}

bool MessageLane::is_leased(const Request& r) const {
  const Leases& leases = *initiator_->leases();
  return leases.any() && r.length != 0 &&
         initiator_->leases()->covers(steering::remote_key(r.wr), steering::remote_address(r.wr),
                                      steering::remote_bytes(r.wr.opcode, r.length),
                                      steering::remote_right(r.wr.opcode));
}

// It lands in one block of staging (steering/elements.h), which has to be had.
bool MessageLane::is_for_view(const Request& r) const {
  return r.wr.opcode == IBV_WR_RDMA_READ && r.length != 0 && r.length <= Leases::longest &&
         r.length <= world_.budgets().queues_staging();
}

bool MessageLane::is_viewed(const Request& r) const {
  Leases& leases = *initiator_->leases();
  return leases.any_views() && is_for_view(r) &&
         leases.views(steering::remote_key(r.wr), steering::remote_address(r.wr), r.length,
                      world_.clock.now());
}

void MessageLane::touch(const Request& r) noexcept {
  try {
    ask_for_lease(r);
  } catch (const std::bad_alloc&) { // it is on its way, and is not asked for
    world_.counters.count(Counter::exceptions_caught);
  }
}

void MessageLane::brought(const Request& r, bool has_views) noexcept {
  try {
    const uint32_t key = steering::remote_key(r.wr);
    const auto now = world_.clock.now();
    if (has_views)
      ask_for_view(r);
    else if (Leases& leases = *initiator_->leases(); !leases.has_no_views(key, now))
      leases.no_views(key, now);
  } catch (const std::bad_alloc&) { // the READ has succeeded, whatever comes of this
    world_.counters.count(Counter::exceptions_caught);
  }
}

void MessageLane::ask_for_view(const Request& r) {
  const uint32_t key = steering::remote_key(r.wr);
  Leases& leases = *initiator_->leases();
  const auto now = world_.clock.now();
  if (lossy_ || !is_for_view(r) || is_viewed(r) || leasing_ >= leasing_max ||
      !leases.view_due(key, now))
    return;
  std::byte* message = initiator_->begin_aside(handle_);
  if (message == nullptr)
    return; // it is asked for later
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(Kind::view);
  h.run = run_;
  h.target = remote_;
  h.source = handle_;
  h.total_address = h.address = steering::remote_address(r.wr);
  h.total = r.length;
  h.length = static_cast<uint32_t>(r.length);
  h.key = key;
  h.request = key; // which the answer names, too
  memcpy(message, &h, sizeof h);
  ++leasing_;
  initiator_->send(message, sizeof h);
  world_.counters.count(Counter::views_asked);
}

void MessageLane::ask_for_lease(const Request& r) {
  // UC goes by none: what its completions say is nothing of the peer.
  if (lossy_ || r.epoch == unleased_ || r.length == 0 || !initiator_->leases_known())
    return;
  const uint32_t key = steering::remote_key(r.wr);
  const uint64_t address = steering::remote_address(r.wr);
  const uint64_t length = steering::remote_bytes(r.wr.opcode, r.length);
  Leases& leases = *initiator_->leases();
  if (leases.name(key, address, length, steering::remote_right(r.wr.opcode))) {
    world_.counters.count(Counter::posts_leased_along);
    return;
  }
  if (leasing_ >= leasing_max)
    return;
  const auto now = world_.clock.now();
  // To READ nothing needs to be kept in place, unless the owner has said that it has no views.
  if (is_for_view(r) && initiator_->views_known() && !leases.has_no_views(key, now))
    return;
  if (!leases.wanted(key, address, length, now))
    return;
  std::byte* message = initiator_->begin_aside(handle_);
  if (message == nullptr)
    return;
  const Leases::Ask ask = leases.ask(key, address, length, now);
  RequestHeader h{};
  h.kind = static_cast<uint8_t>(Kind::lease);
  h.run = run_;
  h.target = remote_;
  h.source = handle_;
  h.total_address = h.address = address;
  h.total = length;
  h.length = static_cast<uint32_t>(length);
  h.key = key;
  h.request = key | uint64_t{ask.heat} << 32; // which the answer names, too
  h.receive = ask.instead_of;
  memcpy(message, &h, sizeof h);
  ++leasing_;
  leasing_epoch_ = r.epoch;
  initiator_->send(message, sizeof h);
  world_.counters.count(Counter::leases_asked);
}

void MessageLane::on_reply(const ReplyHeader& reply, std::span<const std::byte> payload) {
  const auto kind = static_cast<Kind>(reply.kind);
  const bool ok = reply.status == static_cast<uint8_t>(Status::ok);
  if (kind == Kind::query) {
    if (asked_ && initiator_ && ok)
      learn(*asked_, steering::KeyVerdict::Kind::virtual_key);
    else if (asked_ && initiator_ && reply.status == static_cast<uint8_t>(Status::not_virtual))
      initiator_->learn(*asked_, steering::KeyVerdict::Kind::real,
                        reply.rkey != 0 ? reply.rkey : steering::KeyVerdict::none);
    else if (asked_)
      target_gone_ = true; // which says nothing of the key
    asked_.reset();
    return;
  }
  if (kind == Kind::lease || kind == Kind::view) {
    if (leasing_ == 0) // of an incarnation that is gone
      return;
    --leasing_;
    if (kind == Kind::lease && reply.status == static_cast<uint8_t>(Status::refused))
      unleased_ = leasing_epoch_;
    return;
  }
  if (kind == Kind::release)
    return; // nobody waits for it, and it names no request
  if (!ring_.holds_seq(reply.request))
    return; // of an incarnation that is gone
  Request& r = ring_.at(reply.request);
  if (r.run == 0 || reply.run != r.run)
    return;
  // One answer for each question: whatever a peer sends beyond that, nobody waits for it.
  if (r.asked) {
    r.asked = false;
  } else if (r.stage == Stage::carried && r.parts != 0) {
    if (ok) {
      --r.parts;
      gave(r.wr.opcode);
    }
  } else {
    return;
  }
  static_cast<MessageWay*>(r.owner)->answered(r, reply, payload); // who sends here is one
}

void MessageLane::cut(uint64_t from) {
  commit(); // of the run that ends
  ++run_;
  for (uint64_t s = std::max(from, ring_.head()); s < ring_.tail(); ++s) {
    Request& r = ring_.at(s);
    if (r.parts != 0)
      gave(r.wr.opcode, r.parts);
    r.parts = 0;
    r.run = 0;
    r.asked = false;
  }
}

void log_refused(World& world, const Request& r, Status status) {
  if (world.log.every("remote-refused", 1))
    world.log.warn("the peer refused an operation of {} bytes on its unpinned region ({}); the "
                   "request completes with the device's error",
                   r.length,
                   status == Status::fault ? "memory unmapped or protected"
                                           : "key, bounds, rights or queue pair state");
}

} // namespace adverb::transfer
