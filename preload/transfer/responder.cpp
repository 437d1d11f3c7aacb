// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "transfer/responder.h"
#include "link/service.h"
#include "memory/copy.h"
#include "observe/counters.h"
#include "observe/log.h"
#include "transfer/initiator.h"

namespace adverb::transfer {

using observe::Counter;

Targets& Targets::get() {
  static auto* targets = new Targets;
  return *targets;
}

void Targets::add(uint64_t handle, Target* target) {
  const std::lock_guard hold(lock_);
  targets_[handle] = target;
}

void Targets::remove(uint64_t handle) {
  const std::lock_guard hold(lock_);
  targets_.erase(handle);
}

Target* Targets::find(uint64_t handle) {
  const std::lock_guard hold(lock_);
  const auto it = targets_.find(handle);
  return it == targets_.end() ? nullptr : it->second;
}

namespace {

Status write(Target& target, const RequestHeader& r, std::span<const std::byte> payload) {
  std::byte* all = nullptr;
  if (target.regions().remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_WRITE,
                              all) != registration::Check::ok)
    return Status::refused;
  std::byte* to = all + (r.address - r.total_address);
  const bool last = (r.flags & last_part) != 0;
  // Only the end of the message has to come last; what is before it may land in any order.
  const bool ok = last ? memory::write_in_order(to, payload.data(), payload.size())
                       : memory::write(to, payload.data(), payload.size());
  if (!ok)
    return Status::fault;
  if (last) {
    observe::count(Counter::responder_writes);
    if ((r.flags & with_immediate) != 0)
      target.expect_immediate(r.receive, static_cast<uint32_t>(r.total));
  }
  observe::count(Counter::responder_bytes, payload.size());
  return Status::ok;
}

Status read(Target& target, const RequestHeader& r, ReplyHeader& reply, std::byte* to,
            size_t room) {
  std::byte* all = nullptr;
  if (r.length > room ||
      target.regions().remote(target.pd(), r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_READ,
                              all) != registration::Check::ok)
    return Status::refused;
  if (!memory::read(to, all + (r.address - r.total_address), r.length))
    return Status::fault;
  reply.length = r.length;
  reply.offset = r.address - r.total_address;
  if ((r.flags & last_part) != 0)
    observe::count(Counter::responder_reads);
  observe::count(Counter::responder_bytes, r.length);
  return Status::ok;
}

} // namespace

Status Responder::execute(const RequestHeader& r, std::span<const std::byte> payload,
                          ReplyHeader& reply, std::byte* reply_payload, size_t room) {
  Target* target = Targets::get().find(r.target);
  if (target == nullptr)
    return Status::refused;
  const auto kind = static_cast<Kind>(r.kind);
  if (kind == Kind::query) {
    if (target->regions().is_reserved(r.key))
      return Status::ok;
    target->regions().told_real(r.key);
    return Status::not_virtual;
  }
  if (kind == Kind::release) {
    if (const auto it = target->grants.find(r.address); it != target->grants.end()) {
      target->regions().revoke(it->second);
      target->grants.erase(it);
    }
    return Status::ok;
  }
  if (r.run <= target->halted_run)
    return Status::halted;
  const Right right = kind == Kind::write  ? Right::write
                      : kind == Kind::read ? Right::read
                                           : Right::atomic;
  Status status = Status::refused;
  if (!target->regions().is_reserved(r.key)) {
    target->regions().told_real(r.key);
    status = Status::not_virtual;
  } else if (!target->allows(right)) {
    status = Status::refused;
  } else if (kind == Kind::write) {
    status = write(*target, r, payload);
  } else if (kind == Kind::read) {
    status = read(*target, r, reply, reply_payload, room);
  } else {
    std::byte* unused = nullptr;
    if (target->regions().remote(target->pd(), r.key, r.total_address, r.total,
                                 IBV_ACCESS_REMOTE_ATOMIC, unused) == registration::Check::ok) {
      if (auto grant =
              target->regions().grant(r.key, r.total_address, r.total, IBV_ACCESS_REMOTE_ATOMIC)) {
        reply.rkey = grant->mr->rkey;
        reply.grant_start = grant->start;
        reply.grant_bytes = grant->mr->length;
        reply.grant = next_grant_++;
        target->grants[reply.grant] = std::move(grant);
        status = Status::ok;
      }
    }
  }
  if (status != Status::ok) {
    target->halted_run = r.run;
    observe::count(Counter::responder_naks);
    if (status == Status::fault && observe::log_every("responder-fault", 1))
      observe::log_warn("a peer's operation of {} bytes met memory that this process has unmapped "
                        "or protected after registering it; the peer gets an error",
                        r.total);
  }
  return status;
}

bool Responder::serve(const link::RxBuffer& message) {
  const auto parsed = parse_request(message.bytes());
  if (!parsed) {
    observe::count(Counter::malformed_messages);
    if (observe::log_every("malformed-request", 10))
      observe::log_error("a peer sent a malformed request of {} bytes; closing the link",
                         message.bytes().size());
    channel_.close();
    return true;
  }
  const RequestHeader& r = parsed->header;
  if (Target* target = Targets::get().find(r.target);
      target != nullptr && !target->settle_receives()) {
    retry_soon();
    return false;
  }
  std::byte* out = channel_.acquire();
  if (out == nullptr)
    return false;
  ReplyHeader reply{};
  reply.kind = r.kind;
  reply.run = r.run;
  reply.source = r.source;
  reply.request = r.request;
  reply.status = static_cast<uint8_t>(execute(r, parsed->payload, reply, out + sizeof reply,
                                              channel_.message_max() - sizeof reply));
  if (reply.status != static_cast<uint8_t>(Status::ok))
    reply.length = 0;
  memcpy(out, &reply, sizeof reply);
  channel_.send(out, sizeof reply + reply.length);
  return true;
}

void Responder::serve_waiting() {
  while (!waiting_.empty() && serve(waiting_.front()))
    waiting_.pop_front();
}

void Responder::retry_soon() {
  if (retrying_)
    return;
  retrying_ = true;
  link::Service::get().after(std::chrono::microseconds(50), [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self)
      return;
    const std::lock_guard hold(self->channel_.device().progress_lock());
    self->retrying_ = false;
    self->serve_waiting();
  });
}

void Responder::on_message(link::RxBuffer message) {
  if (waiting_.empty() && serve(message))
    return;
  waiting_.push_back(std::move(message));
  if (waiting_.size() > 1)
    serve_waiting();
}

void Responder::on_tx_free() {
  serve_waiting();
}

namespace {

// Channels carry their Initiator or Responder as user data, made at the first message or attach.
struct InitiatorSide final : link::ChannelUser {
  virtual ~InitiatorSide() = default;
  void on_message(link::Channel& channel, link::RxBuffer message) override {
    if (auto* initiator = static_cast<Initiator*>(channel.user_data.get()))
      initiator->on_message(std::move(message));
  }
  void on_tx_free(link::Channel& channel) override {
    if (auto* initiator = static_cast<Initiator*>(channel.user_data.get()))
      initiator->on_tx_free();
  }
  void on_down(link::Channel& channel) override {
    // The channel owns its Initiator and the Initiator its channel; the end of the link unties
    // them.
    const auto user = std::move(channel.user_data);
    if (auto* initiator = static_cast<Initiator*>(user.get()))
      initiator->on_down();
  }
};

struct ResponderSide final : link::ChannelUser {
  virtual ~ResponderSide() = default;
  static Responder& of(link::Channel& channel) {
    if (!channel.user_data)
      channel.user_data = std::make_shared<Responder>(channel);
    return *static_cast<Responder*>(channel.user_data.get());
  }
  void on_message(link::Channel& channel, link::RxBuffer message) override {
    of(channel).on_message(std::move(message));
  }
  void on_tx_free(link::Channel& channel) override { of(channel).on_tx_free(); }
  void on_down(link::Channel& channel) override { channel.user_data.reset(); }
};

} // namespace

void install() {
  static auto* initiator_side = new InitiatorSide;
  static auto* responder_side = new ResponderSide;
  link::set_channel_user(initiator_side, responder_side);
}

} // namespace adverb::transfer
