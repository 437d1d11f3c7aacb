// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Requests that the peer's responder carries out: cut into parts, each answered; and atomics, which
// borrow a window of the owner's and run on its device.
#include "memory/copy.h"
#include "model/qp.h"
#include "model/send_queue.h"
#include "observe/counters.h"
#include "observe/log.h"

#include <algorithm>
#include <cstring>

namespace adverb::model {

using observe::Counter;
using transfer::Kind;
using transfer::Status;

namespace {
constexpr size_t grants_max = 4; // per queue pair; each is a page the owner pins meanwhile
}

transfer::RequestHeader SendQueue::header(const SendRequest& r, Kind kind) const {
  transfer::RequestHeader h{};
  h.kind = static_cast<uint8_t>(kind);
  h.run = run_;
  h.target = qp_.remote_handle();
  h.source = qp_.handle();
  h.request = r.seq;
  return h;
}

void SendQueue::ask_key(uint32_t rkey) {
  if (asked_key_)
    return;
  std::byte* message = qp_.initiator()->begin(qp_.handle());
  if (message == nullptr)
    return;
  transfer::RequestHeader h{};
  h.kind = static_cast<uint8_t>(Kind::query);
  h.run = run_;
  h.target = qp_.remote_handle();
  h.source = qp_.handle();
  h.key = rkey;
  memcpy(message, &h, sizeof h);
  asked_key_ = rkey;
  qp_.initiator()->send(message, sizeof h);
  observe::count(Counter::key_queries);
}

// Bytes [from, from + bytes) of the request's payload, checked as the device would.
bool SendQueue::gather(const SendRequest& r, uint64_t from, std::byte* to, size_t bytes) {
  if ((r.wr.send_flags & IBV_SEND_INLINE) != 0) {
    memcpy(to, inline_store(r) + from, bytes);
    return true;
  }
  for (int i = 0; i < r.wr.num_sge && bytes != 0; ++i) {
    const ibv_sge& sge = r.wr.sg_list[i];
    if (from >= sge.length) {
      from -= sge.length;
      continue;
    }
    registration::Span span;
    const size_t n = std::min<uint64_t>(bytes, sge.length - from);
    if (qp_.regions().local(qp_.pd(), sge, 0, span) != registration::Check::ok ||
        !memory::read(to, span.data + from, n))
      return false;
    to += n;
    bytes -= n;
    from = 0;
  }
  return bytes == 0;
}

bool SendQueue::scatter(const SendRequest& r, uint64_t from, std::span<const std::byte> bytes) {
  for (int i = 0; i < r.wr.num_sge && !bytes.empty(); ++i) {
    const ibv_sge& sge = r.wr.sg_list[i];
    if (from >= sge.length) {
      from -= sge.length;
      continue;
    }
    registration::Span span;
    const size_t n = std::min<uint64_t>(bytes.size(), sge.length - from);
    if (qp_.regions().local(qp_.pd(), sge, IBV_ACCESS_LOCAL_WRITE, span) !=
            registration::Check::ok ||
        !memory::write_in_order(span.data + from, bytes.data(), n))
      return false;
    bytes = bytes.subspan(n);
    from = 0;
  }
  return bytes.empty();
}

// One part of a WRITE or READ; false when it has to wait for a credit or went wrong (then the
// request's way has become replay).
bool SendQueue::send_part(SendRequest& r) {
  transfer::Initiator& initiator = *qp_.initiator();
  std::byte* message = initiator.begin(qp_.handle());
  if (message == nullptr)
    return false;
  const bool reading = r.wr.opcode == IBV_WR_RDMA_READ;
  const size_t bytes = std::min<uint64_t>(r.length - r.sent, initiator.payload_max());
  auto h = header(r, reading ? Kind::read : Kind::write);
  h.total_address = r.wr.wr.rdma.remote_addr;
  h.total = r.length;
  h.address = h.total_address + r.sent;
  h.length = static_cast<uint32_t>(bytes);
  h.key = r.wr.wr.rdma.rkey;
  if (r.sent + bytes == r.length)
    h.flags |= transfer::last_part;
  if (r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    h.flags |= transfer::with_immediate;
    h.receive = receives_ + 1;
  }
  size_t message_bytes = sizeof h;
  if (!reading) {
    if (!gather(r, r.sent, message + sizeof h, bytes)) {
      initiator.cancel(message);
      r.way = Way::replay;
      r.bad_local = true;
      return false;
    }
    message_bytes += bytes;
  }
  memcpy(message, &h, sizeof h);
  r.sent += bytes;
  r.stage = Stage::parts;
  ++r.parts;
  ++parts_out_;
  if (reading)
    ++reads_out_;
  initiator.send(message, message_bytes);
  return true;
}

SendQueue::Step SendQueue::unload(SendRequest& r, int& why) {
  if (r.sent == 0) {
    if (provider_must_finish(r)) {
      wait_for_provider(r);
      return Step::wait;
    }
    if ((r.wr.send_flags & IBV_SEND_FENCE) != 0 && reads_out_ != 0)
      return Step::wait;
    // A READ's elements are judged before the peer is asked: a NIC would not fetch for nothing.
    if (r.wr.opcode == IBV_WR_RDMA_READ) {
      for (int i = 0; i < r.wr.num_sge; ++i) {
        registration::Span span;
        if (r.wr.sg_list[i].length != 0 &&
            qp_.regions().local(qp_.pd(), r.wr.sg_list[i], IBV_ACCESS_LOCAL_WRITE, span) !=
                registration::Check::ok) {
          r.way = Way::replay;
          r.bad_local = true;
          return parts_out_ != 0 ? Step::wait : replay(r, why);
        }
      }
    }
  }
  while (r.sent < r.length && send_part(r)) {
  }
  if (r.way == Way::replay)
    return parts_out_ != 0 ? Step::wait : replay(r, why);
  if (r.sent < r.length)
    return Step::wait;
  observe::count(Counter::posts_unloaded_bytes, r.parts != 0 ? r.length : 0);
  if (r.wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
    observe::count(r.wr.opcode == IBV_WR_RDMA_READ ? Counter::posts_unloaded_read
                                                   : Counter::posts_unloaded_write);
    return Step::issued;
  }
  if (r.parts != 0)
    return Step::wait; // the immediate follows the data
  r.announced = true;
  observe::count(Counter::posts_unloaded_imm);
  return post(r, why);
}

SendQueue::Step SendQueue::with_grant(SendRequest& r, int& why) {
  if (parts_must_finish(r))
    return Step::wait;
  const auto& op = r.wr.wr.atomic;
  for (const GrantHeld& g : grants_) {
    if (g.key != op.rkey || op.remote_addr < g.start || op.remote_addr - g.start > g.bytes - 8)
      continue;
    r.granted = g.rkey;
    observe::count(Counter::posts_atomic_granted);
    return post(r, why);
  }
  if (grant_asked_)
    return Step::wait;
  if (grants_.size() >= grants_max && posted_ != 0) {
    wait_for_provider(r); // one of the held ones may be in use
    return Step::wait;
  }
  if (grants_.size() >= grants_max)
    release_grants();
  std::byte* message = qp_.initiator()->begin(qp_.handle());
  if (message == nullptr)
    return Step::wait;
  auto h = header(r, Kind::grant);
  h.total_address = h.address = op.remote_addr;
  h.total = 8;
  h.length = 8;
  h.key = op.rkey;
  memcpy(message, &h, sizeof h);
  grant_asked_ = true;
  qp_.initiator()->send(message, sizeof h);
  return Step::wait;
}

void SendQueue::grants_idle() {
  grant_timer_ = false;
  if (idle())
    release_grants();
}

// Gives all grants back; what finds no credit now is tried again when the queue is idle next.
void SendQueue::release_grants() {
  while (!grants_.empty() && qp_.peer() == Peer::linked) {
    std::byte* message = qp_.initiator()->begin(0);
    if (message == nullptr)
      break;
    transfer::RequestHeader h{};
    h.kind = static_cast<uint8_t>(Kind::release);
    h.run = run_;
    h.target = qp_.remote_handle();
    h.source = qp_.handle();
    h.address = grants_.back().id;
    memcpy(message, &h, sizeof h);
    grants_.pop_back();
    qp_.initiator()->send(message, sizeof h);
  }
}

void SendQueue::halt_at(SendRequest& r, Status status) {
  if (status == Status::not_virtual) {
    const bool atomic =
        r.wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || r.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    qp_.initiator()->learn(atomic ? r.wr.wr.atomic.rkey : r.wr.wr.rdma.rkey, false);
  } else {
    r.way = Way::replay;
    if (observe::log_every("remote-refused", 1))
      observe::log_warn(
          "the peer refused an operation of {} bytes on its unpinned region ({}); the "
          "device reports it",
          r.length,
          status == Status::fault ? "memory unmapped or protected"
                                  : "key, bounds, rights or queue pair state");
  }
  restart(r.seq);
}

void SendQueue::on_reply(const transfer::ReplyHeader& reply, std::span<const std::byte> payload) {
  const auto kind = static_cast<Kind>(reply.kind);
  const auto status = static_cast<Status>(reply.status);
  if (kind == Kind::query) {
    if (asked_key_ && qp_.initiator() != nullptr)
      qp_.initiator()->learn(*asked_key_, status == Status::ok);
    asked_key_.reset();
    pump();
    return;
  }
  if (kind == Kind::release || reply.run != run_ || reply.request < head_ || reply.request >= tail_)
    return;
  SendRequest& r = at(reply.request);
  if (kind == Kind::grant) {
    grant_asked_ = false;
    if (status == Status::ok)
      grants_.push_back(
          {r.wr.wr.atomic.rkey, reply.grant_start, reply.grant_bytes, reply.rkey, reply.grant});
    else if (status != Status::halted)
      halt_at(r, status);
    pump();
    return;
  }
  if (r.stage != Stage::parts || r.parts == 0 || parts_out_ == 0)
    return;
  if (status != Status::ok) {
    // `halted` answers only follow the failure that caused them, which has changed run_.
    halt_at(r, status == Status::halted ? Status::refused : status);
    pump();
    return;
  }
  --r.parts;
  --parts_out_;
  if (kind == Kind::read) {
    --reads_out_;
    if (!scatter(r, reply.offset, payload)) {
      r.way = Way::replay;
      r.bad_local = true;
      restart(r.seq);
      pump();
      return;
    }
  }
  if (r.parts == 0 && r.sent == r.length && r.wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
    r.stage = Stage::done;
    r.result.wc.status = IBV_WC_SUCCESS;
    r.result.wc.opcode = kind == Kind::read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
    r.result.wc.byte_len = static_cast<uint32_t>(r.length);
  }
  pump();
}

// The link is gone: what it carried is given to the device, whose timers and NAKs tell a dead peer
// from one that lives.
void SendQueue::on_down() {
  asked_key_.reset();
  grant_asked_ = false;
  grants_.clear();
  uint64_t first = head_;
  while (first < tail_ && at(first).stage != Stage::parts)
    ++first;
  if (first < tail_)
    at(first).way = Way::replay;
  restart(std::min(first, next_)); // the others are decided anew: they may have waited for a credit
  pump();
}

} // namespace adverb::model
