// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "program.h"
#include "transfer/protocol.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

namespace sim {

namespace {

constexpr uint32_t cell_bytes = sizeof(uint64_t);
constexpr unsigned shared_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// One mapping for each program of a schedule, for all schedules.
std::span<uint64_t> memory_of(uint32_t program, uint32_t part, uint32_t cells) {
  static std::map<std::pair<uint32_t, uint32_t>, void*> all;
  void*& at = all[{program, part}];
  if (at == nullptr)
    at = mmap(nullptr, cells * cell_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
              0);
  memset(at, 0, cells * cell_bytes);
  return {static_cast<uint64_t*>(at), cells};
}

Status status_of(ibv_wc_status status) {
  switch (status) {
  case IBV_WC_SUCCESS:
    return Status::success;
  case IBV_WC_REM_ACCESS_ERR:
    return Status::remote_access;
  case IBV_WC_WR_FLUSH_ERR:
    return Status::flushed;
  default:
    return Status::other;
  }
}

const char* text_of(ibv_wc_status status) {
  switch (status) {
  case IBV_WC_SUCCESS:
    return "SUCCESS";
  case IBV_WC_REM_ACCESS_ERR:
    return "REM_ACCESS_ERR";
  case IBV_WC_WR_FLUSH_ERR:
    return "WR_FLUSH_ERR";
  case IBV_WC_RETRY_EXC_ERR:
    return "RETRY_EXC_ERR";
  case IBV_WC_LOC_PROT_ERR:
    return "LOC_PROT_ERR";
  case IBV_WC_LOC_QP_OP_ERR:
    return "LOC_QP_OP_ERR";
  case IBV_WC_REM_OP_ERR:
    return "REM_OP_ERR";
  default:
    return "another status";
  }
}

ibv_wc_opcode opcode_of(Kind kind) {
  switch (kind) {
  case Kind::read:
    return IBV_WC_RDMA_READ;
  case Kind::fetch_add:
    return IBV_WC_FETCH_ADD;
  case Kind::send:
    return IBV_WC_SEND;
  default:
    return IBV_WC_RDMA_WRITE;
  }
}

} // namespace

void Words::line(adverb::observe::LogLevel level, std::string_view text) noexcept {
  if (loud)
    printf("      %.*s: %.*s\n", static_cast<int>(to_string(level).size()), to_string(level).data(),
           static_cast<int>(text.size()), text.data());
}

Program::Program(uint32_t number, Choices& choices, Fabric& fabric, Net& net, Oracle& oracle,
                 const adverb::policy::Policy& policy, bool loud)
    : number_(number), choices_(choices), oracle_(oracle), world({.clock = clock_,
                                                                  .entropy = entropy_,
                                                                  .service = service_,
                                                                  .real = &Fabric::real(),
                                                                  .policy = &policy,
                                                                  .log_sink = &words_,
                                                                  .shared_page = false}),
      shared_(memory_of(number, 0, shared_cells)), own_(memory_of(number, 1, slots * slot_cells)),
      next_id_((number + 1) * 1'000'000ULL), next_value_((number + 1) * 1'000'000'000'000ULL),
      budget_(choices.between(8, 40)),
      wrong_(std::array<uint32_t, 4>{0, 200, 40, 10}[choices.below(4)]) {
  words_.loud = loud;
  auto links = std::make_shared<Links>(world, service_of(number), net);
  links->serve(adverb::transfer::make_protocol(
      world, std::make_shared<adverb::transfer::Handlers>(adverb::transfer::handler_list()),
      world.targets()));
  world.parts.links.put(std::move(links));
  context_ = verbs_.open_device(fabric.device());
  pd_ = verbs_.alloc_pd(context_);
  shared_mr_ = verbs_.reg_mr(pd_, shared_.data(), shared_.size_bytes(), shared_rights);
  own_mr_ = verbs_.reg_mr(pd_, own_.data(), own_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  const uint32_t cqs = choices.between(1, 3);
  for (uint32_t i = 0; i < cqs; ++i)
    cqs_.push_back(verbs_.create_cq(context_, 512, nullptr, nullptr, 0));
  for (uint32_t slot = slots; slot-- > 0;)
    free_.push_back(slot);
}

Program::~Program() = default;

void Program::close() {
  for (const auto& queue : queues_)
    verbs_.destroy_qp(queue->qp);
  for (ibv_cq* cq : cqs_)
    verbs_.destroy_cq(cq);
  verbs_.dereg_mr(shared_mr_);
  verbs_.dereg_mr(own_mr_);
  verbs_.dealloc_pd(pd_);
  verbs_.close_device(context_);
}

void Program::make_qp(uint32_t number) {
  auto queue = std::make_unique<Queue>();
  ibv_qp_init_attr init{};
  init.send_cq = cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))];
  init.recv_cq = cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))];
  init.qp_type = IBV_QPT_RC;
  init.cap = {choices_.between(2, 16), 16, 2, 1, 64};
  init.sq_sig_all = choices_.once_in(4) ? 1 : 0;
  queue->all_signaled = init.sq_sig_all != 0;
  queue->depth = init.cap.max_send_wr;
  queue->number = number;
  queue->qp = verbs_.create_qp(pd_, &init);
  queues_.push_back(std::move(queue));
}

void Program::connect(uint32_t number, Program& peer, uint32_t peer_number) {
  const auto mine = std::ranges::find(queues_, number, [](const auto& q) { return q->number; });
  const auto theirs =
      std::ranges::find(peer.queues_, peer_number, [](const auto& q) { return q->number; });
  (*mine)->peer = &peer;
  ibv_qp_attr attr{};
  attr.qp_access_flags = shared_rights & ~static_cast<unsigned>(IBV_ACCESS_LOCAL_WRITE);
  attr.qp_state = IBV_QPS_INIT;
  verbs_.modify_qp((*mine)->qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.dest_qp_num = (*theirs)->qp->qp_num;
  verbs_.modify_qp((*mine)->qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN);
  attr.qp_state = IBV_QPS_RTS;
  if (const int rc = verbs_.modify_qp((*mine)->qp, &attr, IBV_QP_STATE); rc != 0)
    trouble.push_back("ibv_modify_qp to RTS: " + std::string(strerror(rc)));
  oracle_.connected(number, number_, peer_number, peer.number_);
}

uint64_t* Program::cells_of(uint32_t slot) {
  return own_.data() + static_cast<size_t>(slot) * slot_cells;
}

void Program::use(uint64_t id, uint32_t slot) {
  slots_[id] = slot;
  ++users_[slot];
}

void Program::release(uint64_t id) {
  const auto at = slots_.find(id);
  if (--users_[at->second] == 0)
    free_.push_back(at->second);
  slots_.erase(at);
}

// What the request is, and its buffer.
bool Program::fill(Queue& queue, Operation& operation, ibv_send_wr& wr,
                   std::vector<ibv_sge>& sges) {
  operation.id = ++next_id_;
  operation.qp = queue.number;
  operation.kind = static_cast<Kind>(choices_.below(5));
  operation.fenced = choices_.once_in(4);
  operation.target.there = queue.peer->number_;
  operation.target.count =
      choices_.once_in(3) ? choices_.between(1, slot_cells) : choices_.between(1, 8);
  const bool counts = operation.kind == Kind::fetch_add;
  const uint32_t writable = shared_cells - counter_cells;
  if (counts) {
    operation.target.count = 1;
    operation.target.cell = writable + choices_.below(counter_cells);
  } else {
    // In few places, so that they meet.
    operation.target.cell =
        std::min(choices_.below(8) * 16 + choices_.below(3), writable - operation.target.count);
  }
  const bool outgoing = operation.kind != Kind::read && !counts;
  uint32_t slot = slots;
  // What an earlier READ of this queue pair brings, behind a fence; not to a cell, where the values
  // would say that they came from elsewhere.
  if (operation.kind == Kind::send && operation.fenced && choices_.once_in(2))
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
  operation.wrong = wrong_ != 0 && operation.kind != Kind::send && choices_.once_in(wrong_);
  wr.wr_id = operation.id;
  if (operation.signaled && !(queue.all_signaled && choices_.once_in(2)))
    wr.send_flags |= IBV_SEND_SIGNALED;
  if (operation.fenced)
    wr.send_flags |= IBV_SEND_FENCE;
  const uint32_t bytes = operation.target.count * cell_bytes;
  if (outgoing && operation.from == never && bytes <= 64 && choices_.once_in(3))
    wr.send_flags |= IBV_SEND_INLINE;
  sges.push_back({reinterpret_cast<uintptr_t>(cells), bytes, own_mr_->lkey});
  if (bytes > cell_bytes && choices_.once_in(4)) { // in two elements
    const uint32_t first = choices_.between(1, operation.target.count - 1) * cell_bytes;
    sges[0].length = first;
    sges.push_back({sges[0].addr + first, bytes - first, own_mr_->lkey});
  }
  const uint64_t address =
      reinterpret_cast<uintptr_t>(queue.peer->shared_.data() + operation.target.cell) +
      (operation.wrong ? queue.peer->shared_.size_bytes() : 0);
  const uint32_t key = queue.peer->shared_mr_->rkey;
  switch (operation.kind) {
  case Kind::write:
    wr.opcode = IBV_WR_RDMA_WRITE;
    break;
  case Kind::write_imm:
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    break;
  case Kind::send:
    wr.opcode = IBV_WR_SEND;
    break;
  case Kind::read:
    wr.opcode = IBV_WR_RDMA_READ;
    break;
  case Kind::fetch_add:
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    break;
  }
  if (counts) {
    wr.wr.atomic.remote_addr = address;
    wr.wr.atomic.compare_add = 1;
    wr.wr.atomic.rkey = key;
  } else {
    wr.wr.rdma = {address, key};
    wr.imm_data = static_cast<uint32_t>(operation.id);
  }
  use(operation.id, slot);
  return true;
}

void Program::post() {
  Queue& queue = *queues_[choices_.below(static_cast<uint32_t>(queues_.size()))];
  const uint32_t most = std::min({queue.depth - queue.open, budget_, 4U});
  if (most == 0 || queue.failed)
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
    operation.signaled = queue.all_signaled || queue.open + i + 1 == queue.depth ||
                         free_.size() <= kept_slots() + 1 || choices_.below(3) != 1;
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
  queue.open += static_cast<uint32_t>(list.size());
  budget_ -= static_cast<uint32_t>(list.size());
  ibv_send_wr* bad = nullptr;
  if (const int rc = adverb::model::post_send(*managed, &list.front(), &bad); rc != 0)
    trouble.push_back("ibv_post_send: " + std::string(strerror(rc)));
  // What was inline, and every list, is the program's again.
  for (const ibv_send_wr& wr : list)
    if ((wr.send_flags & IBV_SEND_INLINE) != 0)
      for (int i = 0; i < wr.num_sge; ++i)
        memset(reinterpret_cast<void*>(wr.sg_list[i].addr), 0xEE, wr.sg_list[i].length);
  for (auto& elements : sges)
    std::ranges::fill(elements, ibv_sge{});
}

void Program::post_receive(Queue& queue) {
  if (queue.receives >= receives_max || free_.empty() || queue.failed)
    return;
  const uint64_t id = ++next_id_;
  const uint32_t slot = free_.back();
  free_.pop_back();
  ibv_sge sge{reinterpret_cast<uintptr_t>(cells_of(slot)), slot_cells * cell_bytes, own_mr_->lkey};
  ibv_recv_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  use(id, slot);
  ++queue.receives;
  oracle_.receive_posted(queue.number, id, slot_cells);
  ibv_recv_wr* bad = nullptr;
  if (const int rc = adverb::model::post_recv(*verbs_.managed(queue.qp), &wr, &bad); rc != 0)
    trouble.push_back("ibv_post_recv: " + std::string(strerror(rc)));
}

void Program::look() {
  const uint32_t cell = choices_.below(shared_cells - counter_cells);
  oracle_.looked(number_, cell, shared_[cell], never);
}

// Its queue pair is in error, as a completion says.
void Program::fails(Queue& queue) {
  if (!std::exchange(queue.failed, true))
    oracle_.broken(queue.number, shared());
}

void Program::on_request(Queue& queue, const ibv_wc& wc) {
  const Operation* operation = oracle_.operation(wc.wr_id);
  Completion c{wc.wr_id,
               queue.number,
               status_of(wc.status),
               text_of(wc.status),
               operation != nullptr && wc.opcode == opcode_of(operation->kind) ? 1 : 0,
               wc.byte_len,
               false,
               0};
  const auto at = std::ranges::find(queue.order, wc.wr_id);
  for (auto it = queue.order.begin(); at != queue.order.end() && it != at + 1; ++it)
    if (const Operation* over = oracle_.operation(*it);
        over->kind == Kind::read || over->kind == Kind::fetch_add) {
      const uint64_t* cells = cells_of(slots_[*it]);
      oracle_.brought(*it, {cells, cells + over->target.count});
    }
  oracle_.completed(c);
  if (wc.status != IBV_WC_SUCCESS)
    fails(queue);
  if (at == queue.order.end())
    return;
  for (auto it = queue.order.begin(); it != at + 1; ++it)
    release(*it);
  queue.open -= static_cast<uint32_t>(at + 1 - queue.order.begin());
  queue.order.erase(queue.order.begin(), at + 1);
}

void Program::on_receive(Queue& queue, const ibv_wc& wc) {
  Completion c{wc.wr_id,
               queue.number,
               status_of(wc.status),
               text_of(wc.status),
               -1,
               wc.byte_len,
               (wc.wc_flags & IBV_WC_WITH_IMM) != 0,
               wc.imm_data};
  std::vector<uint64_t> got;
  const uint64_t* cells = cells_of(slots_.at(wc.wr_id));
  got.assign(cells, cells + slot_cells);
  release(wc.wr_id);
  --queue.receives;
  if (wc.status != IBV_WC_SUCCESS)
    fails(queue);
  oracle_.received(c, got);
  const Operation* message = oracle_.last_received();
  if (message == nullptr || wc.status != IBV_WC_SUCCESS)
    return;
  // All that its sender posted before is here.
  if (message->kind == Kind::write_imm)
    for (uint32_t i = 0; i < message->target.count; ++i)
      oracle_.looked(number_, message->target.cell + i, shared_[message->target.cell + i],
                     message->id);
  else
    for (int i = 0; i < 4; ++i) {
      const uint32_t cell = choices_.below(8) * 16 + choices_.below(3);
      oracle_.looked(number_, cell, shared_[cell], message->id);
    }
}

int Program::poll(ibv_cq* cq, int most) {
  std::array<ibv_wc, 8> wc{};
  const int n = adverb::model::poll_cq(*verbs_.managed(cq), most, wc.data());
  if (n < 0)
    trouble.emplace_back("ibv_poll_cq fails");
  for (int i = 0; i < n; ++i) {
    const ibv_wc& one = wc[static_cast<size_t>(i)];
    const auto queue =
        std::ranges::find_if(queues_, [&](const auto& q) { return q->qp->qp_num == one.qp_num; });
    const bool request = oracle_.operation(one.wr_id) != nullptr;
    if (queue == queues_.end() || (!request && !slots_.contains(one.wr_id)))
      oracle_.found("a completion of nobody's: wr_id " + std::to_string(one.wr_id));
    else if (request)
      on_request(**queue, one);
    else
      on_receive(**queue, one);
  }
  return n;
}

void Program::poll() {
  poll(cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))],
       static_cast<int>(choices_.between(1, 8)));
}

void Program::wind_up() {
  found_some_ = false;
  for (ibv_cq* cq : cqs_)
    found_some_ = poll(cq, 8) != 0 || found_some_;
  for (const auto& queue : queues_)
    post_receive(*queue);
}

void Program::act() {
  switch (choices_.below(5)) {
  case 0:
    post_receive(*queues_[choices_.below(static_cast<uint32_t>(queues_.size()))]);
    break;
  case 1:
    look();
    break;
  default:
    post();
    break;
  }
}

void Program::offer_own(Steps& steps) {
  steps.emplace_back(poster_of(number_), [this] { act(); });
  offer_poll(steps);
}

void Program::offer_poll(Steps& steps) {
  steps.emplace_back(poller_of(number_), [this] { poll(); });
}

void Program::offer(Steps& steps) {
  if (!service_.tasks.empty())
    steps.emplace_back(service_of(number_), [this] {
      const auto task = std::move(service_.tasks.front());
      service_.tasks.pop_front();
      task();
    });
  if (!service_.timers.empty() &&
      service_.timers.begin()->first <= clock_.time + std::chrono::milliseconds(1))
    offer_late(steps);
}

// What comes when nothing else can.
bool Program::offer_late(Steps& steps) {
  if (service_.timers.empty())
    return false;
  steps.emplace_back(service_of(number_), [this] {
    const auto first = service_.timers.begin();
    clock_.time = std::max(clock_.time, first->first);
    const auto task = std::move(first->second.second);
    service_.timers.erase(first);
    task();
  });
  return true;
}

// Nothing that it may wait for is outstanding.
bool Program::idle() const {
  return std::ranges::all_of(queues_, [&](const auto& queue) {
    return std::ranges::none_of(queue->order, [&](uint64_t id) {
      return queue->failed || oracle_.operation(id)->signaled;
    });
  });
}

std::vector<uint64_t> Program::shared() const {
  return {shared_.begin(), shared_.end()};
}

} // namespace sim
