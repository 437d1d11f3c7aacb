// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a program is told, and sees.
#include "program.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace sim {

namespace {

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

ibv_wc_opcode opcode_of(const Operation& operation) {
  switch (operation.kind) {
  case Kind::read:
    return IBV_WC_RDMA_READ;
  case Kind::fetch_add:
    return operation.compares ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD;
  case Kind::send:
    return IBV_WC_SEND;
  default:
    return IBV_WC_RDMA_WRITE;
  }
}

} // namespace

void Program::look() {
  const uint32_t cell = choices_.below(shared_cells - counter_cells);
  if (mailbox_ && shared_[cell] != 0 && choices_.once_in(2))
    empty(cell);
  else
    oracle_.looked(number_, cell, shared_[cell], never);
}

// What it has taken note of it takes out.
void Program::empty(uint32_t cell) {
  oracle_.emptied(number_, cell, shared_[cell]);
  shared_[cell] = 0;
}

void Program::empty_all() {
  for (uint32_t cell = 0; cell < shared_cells - counter_cells; ++cell)
    if (mailbox_ && shared_[cell] != 0)
      empty(cell);
}

// Its queue pair is in error, as it knows from here on.
void Program::fails(Queue& queue) {
  queue.failed = true;
  oracle_.broken(queue.number, shared());
}

// Of a queue pair that is not reliable, its requests alone may have: then it receives as before.
void Program::request_failed(Queue& queue) {
  queue.failed = queue.told = true;
  if (queue.transport == Transport::rc || Fabric::in_error(queue.qp))
    fails(queue);
}

void Program::on_request(Queue& queue, const ibv_wc& wc) {
  const Operation* operation = oracle_.operation(wc.wr_id);
  Completion c{wc.wr_id,
               queue.number,
               status_of(wc.status),
               text_of(wc.status),
               operation != nullptr && wc.opcode == opcode_of(*operation) ? 1 : 0,
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
    request_failed(queue);
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
  if (queue.transport == Transport::ud && wc.status == IBV_WC_SUCCESS) {
    if (wc.byte_len < header_cells * sizeof(uint64_t) || (wc.wc_flags & IBV_WC_GRH) == 0)
      trouble.emplace_back("a datagram comes without room for its header");
    c.byte_len -= header_cells * static_cast<uint32_t>(sizeof(uint64_t));
    got.erase(got.begin(), got.begin() + header_cells);
  }
  release(wc.wr_id);
  if (srq_ != nullptr) {
    --srq_open_;
  } else {
    std::erase(queue.waiting, wc.wr_id);
    --queue.receives;
  }
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

// By the extended interface.
int Program::take_extended(const Completions& queue, std::span<ibv_wc> wc) {
  namespace model = adverb::model;
  model::Cq& managed = *verbs_.managed(queue.cq);
  auto* const cq = reinterpret_cast<ibv_cq_ex*>(queue.cq);
  ibv_poll_cq_attr attr{};
  int rc = model::cq_ex_start_poll(managed, cq, &attr);
  if (rc != 0)
    return rc == ENOENT ? 0 : -1;
  size_t n = 0;
  for (; rc == 0; rc = n < wc.size() ? model::cq_ex_next_poll(managed, cq) : ENOENT) {
    ibv_wc& one = wc[n++];
    one = {};
    one.wr_id = cq->wr_id;
    one.status = cq->status;
    one.opcode = model::cq_ex_read_opcode(managed, cq);
    one.byte_len = model::cq_ex_read_byte_len(managed, cq);
    one.imm_data = model::cq_ex_read_imm_data(managed, cq);
    one.qp_num = model::cq_ex_read_qp_num(managed, cq);
    one.wc_flags = model::cq_ex_read_wc_flags(managed, cq);
  }
  model::cq_ex_end_poll(managed, cq);
  return rc == ENOENT ? static_cast<int>(n) : -1;
}

int Program::take(const Completions& from, int most) {
  std::array<ibv_wc, 8> wc{};
  const int n = from.extended && !choices_.once_in(3)
                    ? take_extended(from, std::span(wc).first(static_cast<size_t>(most)))
                    : adverb::model::poll_cq(*verbs_.managed(from.cq), most, wc.data());
  if (n < 0)
    trouble.emplace_back("ibv_poll_cq fails");
  // As far as nobody else does anything meanwhile.
  if (n < most && fibre() == 0 && Fabric::has_completions(from.cq))
    oracle_.found("a poll gives fewer than it was asked for, and the queue is not empty");
  for (int i = 0; i < n; ++i) {
    const ibv_wc& one = wc[static_cast<size_t>(i)];
    const auto queue =
        std::ranges::find_if(queues_, [&](const auto& q) { return q->qpn == one.qp_num; });
    if (past_.erase(one.wr_id) != 0)
      continue; // had completed when its queue pair went, or is to be ignored
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

int Program::poll(Completions& queue, int most) {
  const uint64_t began = ++moment_;
  if (queue.asleep && !Fabric::take_event(queue.cq)) {
    queue.emptied = began;
    return 0;
  }
  queue.asleep = false;
  if (hasty_)
    return poll_hastily(queue, began);
  int n = take(queue, most);
  if (n == 0)
    queue.emptied = began;
  if (n != 0 || !sleeps_)
    return n;
  // Armed first: what came before is found by one more look.
  if (adverb::model::req_notify_cq(*verbs_.managed(queue.cq), 0) != 0)
    trouble.emplace_back("ibv_req_notify_cq fails");
  n = take(queue, 1);
  fall_asleep(queue, n == 0);
  return n;
}

void Program::fall_asleep(Completions& queue, bool yes) {
  queue.asleep = yes;
  if (yes && oracle_.loud)
    printf("        program %u sleeps on completion queue %zu\n", number_,
           static_cast<size_t>(&queue - cqs_.data()));
}

// Arms, and sleeps as soon as it gets fewer than it asks for: so few say that there are no more.
int Program::poll_hastily(Completions& queue, uint64_t began) {
  if (adverb::model::req_notify_cq(*verbs_.managed(queue.cq), 0) != 0)
    trouble.emplace_back("ibv_req_notify_cq fails");
  const auto most = static_cast<int>(choices_.between(1, 2));
  const int n = take(queue, most);
  fall_asleep(queue, n < most);
  if (queue.asleep)
    queue.emptied = began;
  return n;
}

void Program::poll() {
  poll(cqs_[choices_.below(static_cast<uint32_t>(cqs_.size()))],
       static_cast<int>(choices_.between(1, 8)));
}

bool Program::overslept() {
  return std::ranges::any_of(cqs_, [this](const Completions& queue) {
    return queue.asleep && !Fabric::take_event(queue.cq) && take(queue, 1) != 0;
  });
}

} // namespace sim
