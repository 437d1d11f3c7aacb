// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program posts.
#include "program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

namespace sim {

namespace {
constexpr uint32_t cell_bytes = sizeof(uint64_t);
constexpr uint32_t no_key = 0xDEAD;                // of no region
constexpr uint64_t no_count = ~uint64_t{0};        // that no counter has
constexpr uint64_t filler = 0xF111'F111'F111'F111; // of a receive's buffer
} // namespace

namespace {

// What a service that is not reliable carries in its place.
Kind carried_by(Transport transport, Kind kind) {
  if (transport == Transport::ud)
    return Kind::send;
  return transport == Transport::rc || kind < Kind::read ? kind
         : kind == Kind::read                            ? Kind::write
                                                         : Kind::write_imm;
}

// What the peer's queue pair allows in its place.
Kind allowed_by(unsigned access, Kind kind) {
  const bool writes = (access & IBV_ACCESS_REMOTE_WRITE) != 0;
  const bool reads = (access & IBV_ACCESS_REMOTE_READ) != 0;
  const bool allowed = kind == Kind::send || (kind == Kind::read && reads) ||
                       (kind <= Kind::write_imm && writes) ||
                       (kind == Kind::fetch_add && (access & IBV_ACCESS_REMOTE_ATOMIC) != 0);
  return allowed ? kind : writes ? Kind::write : reads ? Kind::read : Kind::send;
}

} // namespace

// Where it goes, by one of the regions there; or by one that does not have it, or not so.
Program::There Program::where(const Queue& queue, const Operation& operation) {
  if (operation.kind == Kind::send)
    return {};
  const Program& peer = *queue.peer;
  const auto address = reinterpret_cast<uintptr_t>(peer.shared_at(operation.target.cell));
  if (operation.wrong && !operation.wrong_here)
    switch (choices_.below(peer.other_pd_ == nullptr ? 3 : 5)) {
    case 1:
      return {address + peer.shift_, no_key};
    case 2:
      if (operation.kind == Kind::fetch_add)
        return {address + peer.shift_ + 4, peer.shared_mr_->rkey};
      break;
    case 3:
      return {address, peer.others_mr_->rkey};
    case 4:
      if (operation.kind != Kind::read)
        return {address, peer.readable_mr_->rkey};
      break;
    default:
      break;
    }
  if (operation.wrong && !operation.wrong_here)
    return {address + peer.shift_ + peer.shared_.size_bytes(), peer.shared_mr_->rkey};
  if (operation.kind == Kind::fetch_add && !peer.counter_mrs_.empty())
    return {
        address,
        peer.counter_mrs_[choices_.below(static_cast<uint32_t>(peer.counter_mrs_.size()))]->rkey};
  if (!operation.wrong && operation.target.cell + operation.target.count <= side_cells &&
      !peer.changing_ && habits_.aside())
    return {address, peer.side_mr_->rkey};
  return {address + peer.shift_, peer.shared_mr_->rkey};
}

// An element that its own device must not take.
void Program::spoil(const Operation& operation, ibv_sge& sge) {
  switch (choices_.below(other_pd_ == nullptr ? 2 : 4)) {
  case 1:
    sge.addr += own_.size_bytes();
    break;
  case 2:
    sge.lkey = others_own_mr_->lkey;
    break;
  case 3:
    sge.lkey = operation.kind == Kind::read || operation.kind == Kind::fetch_add ? sealed_mr_->lkey
                                                                                 : no_key;
    break;
  default:
    sge.lkey = no_key;
    break;
  }
}

// One that no queue pair takes; of opcodes a datagram's says so itself, by a completion where it
// cannot at once.
ibv_send_wr* Program::spoil(const Queue& queue, ibv_send_wr& wr) {
  static std::array<ibv_sge, 4> elements{};
  wr = {};
  wr.sg_list = elements.data();
  wr.opcode = IBV_WR_SEND;
  switch (choices_.below(queue.transport == Transport::ud ? 3 : 4)) {
  case 1:
    wr.num_sge = -1;
    break;
  case 2: // more inline than it has room for
    wr.send_flags = IBV_SEND_INLINE;
    wr.num_sge = 1;
    elements[0] = {reinterpret_cast<uintptr_t>(own_at(own_.data())), 2 * inline_max, 0};
    break;
  case 3:
    wr.opcode = IBV_WR_TSO;
    break;
  default:
    wr.num_sge = elements.size();
    break;
  }
  return &wr;
}

// What the request is, and its buffer.
bool Program::fill(Queue& queue, Operation& operation, ibv_send_wr& wr,
                   std::vector<ibv_sge>& sges) {
  operation.id = ++next_id_;
  operation.qp = queue.number;
  const bool reliable = queue.transport == Transport::rc;
  operation.kind = carried_by(queue.transport, habits_.kind());
  if (reliable)
    operation.kind = allowed_by(queue.other->access, operation.kind);
  operation.fenced = habits_.fenced();
  operation.target.there = queue.peer->number_;
  operation.target.count = habits_.empty()   ? 0
                           : habits_.large() ? choices_.between(1, slot_cells)
                                             : choices_.between(1, 8);
  if (queue.transport == Transport::ud)
    operation.target.count = std::min(operation.target.count, slot_cells - header_cells);
  const bool counts = operation.kind == Kind::fetch_add;
  const uint32_t writable = shared_cells - counter_cells;
  if (counts) {
    operation.target.count = 1;
    operation.target.cell = writable + choices_.below(counter_cells);
  } else {
    // In few places, so that they meet.
    operation.target.cell = std::min(habits_.place(), writable - operation.target.count);
  }
  const bool outgoing = operation.kind != Kind::read && !counts;
  uint32_t slot = slots;
  // What an earlier READ of this queue pair brings, behind a fence.
  if ((operation.kind == Kind::send || operation.kind == Kind::write) && operation.fenced &&
      habits_.brought())
    for (auto it = queue.order.rbegin(); it != queue.order.rend() && operation.from == never; ++it)
      if (const Operation* earlier = oracle_.operation(*it);
          earlier != nullptr && earlier->kind == Kind::read && !earlier->wrong) {
        operation.from = earlier->id;
        operation.target.count = std::min(operation.target.count, earlier->target.count);
        slot = slots_[*it];
      }
  if (slot == slots) {
    if (free_.size() <= kept_slots())
      return false;
    slot = free_.back();
    free_.pop_back();
  }
  uint64_t* cells = cells_of(slot);
  if (outgoing && operation.from == never)
    for (uint32_t i = 0; i < operation.target.count; ++i)
      operation.values.push_back(cells[i] = ++next_value_);
  // Once in a while something that the peer must refuse.
  operation.wrong = wrong_ != 0 && operation.target.count != 0 &&
                    (reliable || operation.kind != Kind::send) && choices_.once_in(wrong_);
  operation.wrong_here =
      operation.wrong && reliable && (operation.kind == Kind::send || choices_.once_in(4));
  // Longer than its port takes: its own device says so.
  const bool longer = operation.target.count * cell_bytes > fabric_.longest;
  if (longer)
    operation.wrong = operation.wrong_here = true;
  // Of what may be lost each says what it is, by its bytes if it has any.
  operation.with_imm = operation.kind == Kind::send &&
                       (choices_.once_in(4) || (!reliable && operation.target.count == 0));
  operation.compares = counts && choices_.once_in(4);
  const There there = where(queue, operation);
  operation.key = there.key;
  operation.follows = queue.peer->follows_addresses(there.key);
  if (is_away(slot))
    oracle_.going(queue.number); // it may be refused here, or what the device has of it goes out
  wr.wr_id = operation.id;
  if (operation.signaled && !(queue.all_signaled && choices_.once_in(2)))
    wr.send_flags |= IBV_SEND_SIGNALED;
  if (operation.fenced)
    wr.send_flags |= IBV_SEND_FENCE;
  const uint32_t bytes = operation.target.count * cell_bytes;
  const bool inlined = outgoing && operation.from == never && !operation.wrong_here &&
                       bytes <= inline_max && !is_away(slot) && habits_.inlined();
  if (inlined ||
      (operation.kind == Kind::read && choices_.once_in(16))) // of a READ it says nothing
    wr.send_flags |= IBV_SEND_INLINE;
  if (bytes != 0 || choices_.once_in(2)) // of no bytes, or of no element
    sges.push_back(element(slot, 0, bytes, inlined));
  if (bytes > cell_bytes && habits_.plain() == 0 && choices_.once_in(4)) { // in two elements
    const uint32_t most = operation.target.count - 1;
    const uint32_t first = choices_.between(1, choices_.once_in(2) ? std::min(most, 4U) : most);
    sges[0].length = first * cell_bytes;
    sges.push_back(element(slot, sges[0].length, bytes - sges[0].length, inlined));
  }
  if (operation.wrong_here && !longer)
    spoil(operation, sges.back());
  else if (sges.size() == 1 && habits_.plain() == 0 &&
           choices_.once_in(12)) // whose key nobody looks at
    sges.insert(choices_.once_in(2) ? sges.begin() : sges.end(), ibv_sge{0, 0, no_key});
  switch (operation.kind) {
  case Kind::write:
    wr.opcode = IBV_WR_RDMA_WRITE;
    break;
  case Kind::write_imm:
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    break;
  case Kind::send:
    wr.opcode = operation.with_imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
    break;
  case Kind::read:
    wr.opcode = IBV_WR_RDMA_READ;
    break;
  case Kind::fetch_add:
    wr.opcode = operation.compares ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
    break;
  }
  if (counts) {
    wr.wr.atomic.remote_addr = there.address;
    wr.wr.atomic.compare_add = operation.compares ? no_count : 1;
    wr.wr.atomic.swap = no_count;
    wr.wr.atomic.rkey = there.key;
  } else {
    wr.imm_data = static_cast<uint32_t>(operation.id);
    if (queue.transport == Transport::ud)
      wr.wr.ud = {nullptr, queue.other->qpn, 0};
    else
      wr.wr.rdma = {there.address, there.key};
  }
  use(operation.id, slot);
  return true;
}

void Program::post(Queue& queue) {
  // Once in a while one too many, which is taken or not.
  const bool over = queue.open >= queue.depth && choices_.once_in(20);
  const uint32_t most = std::min(
      {over ? 1 : queue.depth - std::min(queue.depth, queue.open), budget_, habits_.most()});
  ++fruitless_;
  if (most == 0 || queue.leaving || (queue.failed && !choices_.once_in(8)))
    return;
  if (habits_.plain() != 0 && queue.open >= habits_.plain())
    return;
  adverb::model::Qp* const managed = verbs_.managed(queue.qp);
  if (managed == nullptr) {
    trouble.emplace_back("a queue pair is not managed");
    return;
  }
  const uint32_t count = choices_.between(1, most);
  std::deque<ibv_send_wr> list;
  std::deque<std::vector<ibv_sge>> sges;
  std::vector<Operation> operations;
  for (uint32_t i = 0; i < count; ++i) {
    Operation operation;
    // A full queue must end in one that says when there is room, and so must the last buffers.
    operation.signaled = queue.all_signaled || queue.open + i + 1 >= queue.depth ||
                         free_.size() <= kept_slots() + 1 || !habits_.quiet();
    ibv_send_wr wr{};
    std::vector<ibv_sge> elements;
    if (!fill(queue, operation, wr, elements))
      break;
    sges.push_back(std::move(elements));
    wr.sg_list = sges.back().data();
    wr.num_sge = static_cast<int>(sges.back().size());
    list.push_back(wr);
    queue.order.push_back(operation.id);
    operations.push_back(operation);
    oracle_.posted(std::move(operation));
  }
  if (list.empty())
    return;
  for (size_t i = 0; i + 1 < list.size(); ++i)
    list[i].next = &list[i + 1];
  fruitless_ = 0;
  queue.open += static_cast<uint32_t>(list.size());
  budget_ -= static_cast<uint32_t>(list.size());
  ibv_send_wr* bad = nullptr;
  ibv_send_wr none{};
  const bool malformed = habits_.malformed();
  if (malformed)
    list.back().next = spoil(queue, none);
  if (const int rc = give(queue, list, bad); malformed && (rc == 0 || bad == &none)) {
    if (rc == 0)
      trouble.emplace_back("ibv_post_send takes what is malformed");
  } else if (rc != 0) {
    if (rc != ENOMEM || !(may_lack() || over))
      trouble.push_back("ibv_post_send: " + std::string(strerror(rc)));
    bool refused = false;
    std::vector<uint64_t> ids;
    for (const ibv_send_wr& wr : list)
      if ((refused = refused || &wr == bad))
        ids.push_back(wr.wr_id);
    for (; !ids.empty(); ids.pop_back())
      give_back(queue, ids.back());
  }
  // What was inline, and every list, is the program's again.
  for (const ibv_send_wr& wr : list)
    if ((wr.send_flags & IBV_SEND_INLINE) != 0 && wr.opcode != IBV_WR_RDMA_READ)
      for (int i = 0; i < wr.num_sge; ++i)
        memset(Pages::kept(reinterpret_cast<void*>(wr.sg_list[i].addr)), 0xEE,
               wr.sg_list[i].length);
  for (auto& elements : sges)
    std::ranges::fill(elements, ibv_sge{});
}

namespace {

// One call of the extended interface for what a plain request says.
void build(adverb::model::Qp& mine, ibv_qp_ex* qp, const ibv_send_wr& wr) {
  namespace model = adverb::model;
  qp->wr_id = wr.wr_id;
  qp->wr_flags = wr.send_flags & ~static_cast<unsigned>(IBV_SEND_INLINE);
  switch (wr.opcode) {
  case IBV_WR_RDMA_WRITE:
    model::wr_rdma_write(mine, qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
    break;
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    model::wr_rdma_write_imm(mine, qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, wr.imm_data);
    break;
  case IBV_WR_RDMA_READ:
    model::wr_rdma_read(mine, qp, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
    break;
  case IBV_WR_SEND_WITH_IMM:
    model::wr_send_imm(mine, qp, wr.imm_data);
    break;
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    model::wr_atomic_cmp_swp(mine, qp, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                             wr.wr.atomic.compare_add, wr.wr.atomic.swap);
    break;
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    model::wr_atomic_fetch_add(mine, qp, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                               wr.wr.atomic.compare_add);
    break;
  default:
    model::wr_send(mine, qp);
    break;
  }
  if (qp->qp_base.qp_type == IBV_QPT_UD)
    model::wr_set_ud_addr(mine, qp, wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && wr.opcode != IBV_WR_RDMA_READ) {
    std::array<ibv_data_buf, 2> parts{};
    for (int i = 0; i < wr.num_sge; ++i)
      parts.at(static_cast<size_t>(i)) = {reinterpret_cast<void*>(wr.sg_list[i].addr),
                                          wr.sg_list[i].length};
    model::wr_set_inline_data_list(mine, qp, static_cast<size_t>(wr.num_sge), parts.data());
  } else if (wr.num_sge == 1) {
    model::wr_set_sge(mine, qp, wr.sg_list->lkey, wr.sg_list->addr, wr.sg_list->length);
  } else {
    model::wr_set_sge_list(mine, qp, static_cast<size_t>(wr.num_sge), wr.sg_list);
  }
}

} // namespace

// By one of the interfaces that the queue pair has.
int Program::give(Queue& queue, std::deque<ibv_send_wr>& list, ibv_send_wr*& bad) {
  adverb::model::Qp& managed = *verbs_.managed(queue.qp);
  if (!queue.extended || list.back().next != nullptr || choices_.once_in(3))
    return adverb::model::post_send(managed, &list.front(), &bad);
  auto* const qp = reinterpret_cast<ibv_qp_ex*>(queue.qp);
  adverb::model::wr_start(managed, qp);
  if (choices_.once_in(8)) { // it thinks better of it, and begins once more
    build(managed, qp, list.back());
    adverb::model::wr_abort(managed, qp);
    adverb::model::wr_start(managed, qp);
  }
  for (const ibv_send_wr& wr : list)
    build(managed, qp, wr);
  bad = &list.front();
  return adverb::model::wr_complete(managed, qp);
}

// It was not taken, and nothing behind it.
void Program::give_back(Queue& queue, uint64_t id) {
  oracle_.refused(id);
  release(id);
  std::erase(queue.order, id);
  --queue.open;
  ++budget_;
}

void Program::post_receive(Queue& queue) {
  const bool full = srq_ != nullptr
                        ? srq_open_ >= 2 * queues_.size()
                        : queue.receives >= receives_max || queue.failed || queue.leaving;
  if (full || free_.empty())
    return;
  const auto at = std::ranges::find_if(free_.rbegin(), free_.rend(),
                                       [this](uint32_t one) { return !is_away(one); });
  if (at == free_.rend())
    return;
  const uint64_t id = ++next_id_;
  const uint32_t slot = *at;
  free_.erase(std::next(at).base());
  uint64_t* cells = cells_of(slot);
  std::fill_n(cells, slot_cells, filler);
  constexpr uint32_t all = slot_cells * cell_bytes;
  const uint32_t first = choices_.once_in(3) ? choices_.between(1, 8) * cell_bytes : all;
  std::array<ibv_sge, 2> sges{element(slot, 0, first, false),
                              element(slot, first, all - first, false)};
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = sges.data();
  wr.num_sge = first == all ? 1 : 2;
  use(id, slot);
  ibv_recv_wr* bad = nullptr;
  int rc = 0;
  if (srq_ != nullptr) {
    ++srq_open_;
    oracle_.shared_receive_posted(number_, id, slot_cells, filler);
    rc = adverb::model::post_srq_recv(*verbs_.managed(srq_), &wr, &bad);
  } else {
    queue.waiting.push_back(id);
    ++queue.receives;
    oracle_.receive_posted(queue.number, id, slot_cells, filler);
    rc = adverb::model::post_recv(*verbs_.managed(queue.qp), &wr, &bad);
  }
  if (rc == 0)
    return;
  if (rc != ENOMEM || !fabric_.refuses)
    trouble.push_back("ibv_post_recv: " + std::string(strerror(rc)));
  release(id);
  if (srq_ != nullptr) {
    --srq_open_;
    oracle_.shared_receive_refused(number_, id);
  } else {
    --queue.receives;
    std::erase(queue.waiting, id);
    oracle_.receive_refused(queue.number, id);
  }
}

} // namespace sim
