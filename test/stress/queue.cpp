// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "queue.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

namespace stress {
namespace {

std::atomic<unsigned> broken_promises{0};
std::atomic<int> complaints{0};

// The first complaint of each promise, of both processes.
struct First {
  std::array<std::atomic<bool>, 4> said;
  std::array<std::array<char, 200>, 4> text;
};
First* const first = static_cast<First*>(
    mmap(nullptr, sizeof(First), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));

// Position and value decide every byte, so neither a shifted nor an older message looks right.
void fill(std::byte* to, uint32_t bytes, uint64_t value) {
  for (uint32_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (value + i) * 0x9E3779B97F4A7C15ULL;
    memcpy(to + i, &word, std::min(8U, bytes - i));
  }
}

bool matches(const std::byte* at, uint32_t bytes, uint64_t value) {
  for (uint32_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (value + i) * 0x9E3779B97F4A7C15ULL;
    if (memcmp(at + i, &word, std::min(8U, bytes - i)) != 0)
      return false;
  }
  return true;
}

constexpr unsigned all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// Both sides know the length and the pattern of the m-th message between two queue pairs.
uint32_t message_bytes(uint64_t m) {
  return 1 + static_cast<uint32_t>(m * 2654435761U >> 7) % (m % 8 == 0 ? small : 200);
}

} // namespace

unsigned broken() {
  return broken_promises;
}

void complain(Promise promise, const char* format, ...) {
  broken_promises |= promise;
  if (complaints++ >= 20)
    return;
  std::array<char, 200> text;
  va_list args;
  va_start(args, format);
  vsnprintf(text.data(), text.size(), format, args);
  va_end(args);
  fprintf(stderr, "%s\n", text.data());
  const auto which = static_cast<size_t>(std::countr_zero(static_cast<unsigned>(promise)));
  if (!first->said[which].exchange(true))
    first->text[which] = text;
}

const char* first_complaint(Promise promise) {
  return first->text[static_cast<size_t>(std::countr_zero(static_cast<unsigned>(promise)))].data();
}

Queue::Queue(ibv_pd* pd, ibv_cq* cq, unsigned number) : pd_(pd), number_(number) {
  void* memory =
      mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memory_ = static_cast<Memory*>(memory);
  mr_ = ibv_reg_mr(pd, memory, sizeof(Memory), all_rights);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_RC;
  init.cap = {window, receives, 1, 1, inline_bytes};
  qp_ = ibv_create_qp(pd, &init);
  if (mr_ == nullptr || qp_ == nullptr) {
    perror("a queue pair and its region");
    _Exit(99);
  }
}

Queue::~Queue() {
  if (ibv_destroy_qp(qp_) != 0 || ibv_dereg_mr(mr_) != 0)
    complain(completions, "queue pair %u cannot be destroyed", number_);
  munmap(memory_, sizeof(Memory));
}

Address Queue::address() const {
  return {qp_->qp_num, mr_->rkey, reinterpret_cast<uint64_t>(memory_)};
}

bool Queue::connect(ibv_context* context, const Address& peer, const Address& shared_counter) {
  peer_ = peer;
  shared_counter_ = shared_counter;
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = all_rights;
  int rc = ibv_modify_qp(qp_, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  for (uint32_t i = 0; i < receives; ++i)
    post_receive();
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer.qpn;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.grh.hop_limit = 64;
  rc |= ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid);
  rc |= ibv_modify_qp(qp_, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.max_rd_atomic = 4;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  rc |= ibv_modify_qp(qp_, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                          IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  return rc == 0;
}

void Queue::post(Kind kind, uint64_t value, uint32_t bytes, uint64_t remote, bool signaled) {
  static constexpr ibv_wr_opcode opcodes[] = {
      IBV_WR_RDMA_WRITE,          IBV_WR_RDMA_READ,  IBV_WR_SEND,
      IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD,
      IBV_WR_ATOMIC_CMP_AND_SWP};
  const uint64_t n = next_;
  // A queue without one signaled request would never be seen to move again.
  signaled |= silent_ >= 5 || room() <= 1;
  silent_ = signaled ? 0 : silent_ + 1;
  at(n) = {kind, signaled, false, value, bytes};
  ibv_sge sge{reinterpret_cast<uint64_t>(buffer(n)), bytes, mr_->lkey};
  ibv_send_wr wr{};
  ibv_send_wr* bad = nullptr;
  wr.wr_id = uint64_t{number_} << 40 | n;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcodes[static_cast<int>(kind)];
  wr.send_flags = signaled ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0;
  if (kind == Kind::add || kind == Kind::swap) {
    wr.wr.atomic.remote_addr = remote;
    wr.wr.atomic.rkey = kind == Kind::add ? shared_counter_.rkey : peer_.rkey;
    wr.wr.atomic.compare_add = kind == Kind::add ? 1 : value;
    wr.wr.atomic.swap = value + 1;
  } else {
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = peer_.rkey;
  }
  if (kind == Kind::announce)
    wr.imm_data = static_cast<uint32_t>(value);
  const bool outgoing = kind == Kind::write || kind == Kind::message || kind == Kind::announce;
  if (outgoing)
    fill(buffer(n), bytes, value);
  if (kind == Kind::tell)
    memcpy(buffer(n), &value, sizeof value);
  if ((outgoing || kind == Kind::tell) && bytes <= inline_bytes && n % 2 == 0)
    wr.send_flags |= IBV_SEND_INLINE;
  if (const int rc = ibv_post_send(qp_, &wr, &bad); rc != 0) {
    complain(completions, "queue pair %u: post of request %" PRIu64 " failed: %s", number_, n,
             strerror(rc));
    return;
  }
  ++next_;
}

bool Queue::work(std::minstd_rand& random) {
  const std::lock_guard hold(lock_);
  // The peer's device writes it: an aligned word is seen whole.
  const uint64_t consumed = __atomic_load_n(&memory_->consumed, __ATOMIC_ACQUIRE);
  if (consumed > messages_)
    complain(data, "queue pair %u: the peer says it consumed %" PRIu64 " of %" PRIu64 " messages",
             number_, consumed, messages_);
  if (room() < 3)
    return false;
  const bool may_send = messages_ - consumed < receives / 2;
  const bool signaled = random() % 4 != 0;
  switch (random() % 6) {
  case 0:
  case 1: { // the READ must meet what the WRITE before it wrote, and none of the WRITEs after it
    const uint32_t bytes = 1 + static_cast<uint32_t>(random()) % (random() % 8 == 0 ? large : 600);
    const uint64_t slot = writes_++ % write_slots;
    const uint64_t remote = peer_.memory + offsetof(Memory, written) + slot * large;
    const uint64_t value = uint64_t{number_} << 48 | next_ << 16;
    post(Kind::write, value, bytes, remote, signaled);
    post(Kind::read, value, bytes, remote, true);
    break;
  }
  case 2:
    if (!may_send)
      return false;
    post(Kind::message, messages_, message_bytes(messages_), 0, signaled);
    ++messages_;
    break;
  case 3: {
    if (!may_send)
      return false;
    const uint64_t slot = messages_ % receives;
    post(Kind::announce, messages_, message_bytes(messages_),
         peer_.memory + offsetof(Memory, announced) + slot * small, signaled);
    ++messages_;
    break;
  }
  case 4:
    post(Kind::add, 0, 8, shared_counter_.memory + offsetof(Memory, added), true);
    break;
  default:
    post(Kind::swap, swaps_++, 8, peer_.memory + offsetof(Memory, swapped), true);
    break;
  }
  return true;
}

// Tells the peer how many of its messages are done with, by a plain WRITE of one word.
void Queue::tell_consumed() {
  if (consumed_ - told_ < receives / 4 || room() == 0)
    return;
  told_ = consumed_;
  post(Kind::tell, consumed_, 8, peer_.memory + offsetof(Memory, consumed), false);
}

void Queue::post_receive() {
  const uint64_t n = receives_posted_++;
  got_[n % receives] = false;
  ibv_sge sge{reinterpret_cast<uint64_t>(memory_->received[n % receives]), small, mr_->lkey};
  ibv_recv_wr wr{};
  ibv_recv_wr* bad = nullptr;
  wr.wr_id = uint64_t{1} << 63 | uint64_t{number_} << 40 | n;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  if (const int rc = ibv_post_recv(qp_, &wr, &bad); rc != 0)
    complain(completions, "queue pair %u: post of receive %" PRIu64 " failed: %s", number_, n,
             strerror(rc));
}

void Queue::on(const ibv_wc& wc) {
  const std::lock_guard hold(lock_);
  if (wc.status != IBV_WC_SUCCESS) {
    complain(completions, "queue pair %u: %" PRIx64 ": %s", number_, wc.wr_id,
             ibv_wc_status_str(wc.status));
    return;
  }
  if (wc.qp_num != qp_->qp_num)
    complain(completions, "queue pair %u: %" PRIx64 " names another queue pair", number_, wc.wr_id);
  if (wc.wr_id >> 63 != 0)
    on_receive(wc);
  else
    on_send(wc);
  tell_consumed();
}

void Queue::on_send(const ibv_wc& wc) {
  static constexpr ibv_wc_opcode opcodes[] = {
      IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ, IBV_WC_SEND,     IBV_WC_RDMA_WRITE,
      IBV_WC_RDMA_WRITE, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP};
  const uint64_t n = wc.wr_id & 0xFFFFFFFFFF;
  if (n < oldest_ || n >= next_ || at(n).handled || !at(n).signaled) {
    complain(completions, "queue pair %u: completion of request %" PRIu64 " which is %s", number_,
             n,
             n >= next_                     ? "not posted"
             : n < oldest_ || at(n).handled ? "complete"
                                            : "not signaled");
    return;
  }
  Posted& p = at(n);
  p.handled = true;
  if (wc.opcode != opcodes[static_cast<int>(p.kind)])
    complain(completions, "queue pair %u: request %" PRIu64 " completed with opcode %d", number_, n,
             wc.opcode);
  uint64_t word = 0;
  memcpy(&word, buffer(n), sizeof word);
  if (p.kind == Kind::read && !matches(buffer(n), p.bytes, p.value))
    complain(data, "queue pair %u: READ %" PRIu64 " of %u bytes did not meet the WRITE before it",
             number_, n, p.bytes);
  if (p.kind == Kind::swap && word != p.value)
    complain(atomics, "queue pair %u: compare-and-swap met %" PRIu64 " for %" PRIu64, number_, word,
             p.value);
  if (p.kind == Kind::add) {
    added_sum_ += word;
    ++added_count_;
  }
  // Room comes back in order: up to a signaled request whose predecessors are all accounted for.
  for (uint64_t i = oldest_; i < next_ && (!at(i).signaled || at(i).handled); ++i)
    if (at(i).signaled)
      oldest_ = i + 1;
}

void Queue::on_receive(const ibv_wc& wc) {
  const uint64_t n = wc.wr_id & 0xFFFFFFFFFF;
  if (n < consumed_ || n >= receives_posted_ || got_[n % receives]) {
    complain(completions, "queue pair %u: completion of receive %" PRIu64 " which is not posted",
             number_, n);
    return;
  }
  got_[n % receives] = true;
  const bool announced = wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
  const std::byte* at =
      announced ? memory_->announced[n % receives] : memory_->received[n % receives];
  if (announced && wc.imm_data != static_cast<uint32_t>(n))
    complain(data, "queue pair %u: message %" PRIu64 " carries immediate %u", number_, n,
             wc.imm_data);
  if (wc.byte_len != message_bytes(n) || !matches(at, wc.byte_len, n))
    complain(data, "queue pair %u: %s %" PRIu64 " of %u bytes (not %u) arrived damaged", number_,
             announced ? "WRITE_WITH_IMM" : "SEND", n, wc.byte_len, message_bytes(n));
  while (consumed_ < receives_posted_ && got_[consumed_ % receives]) {
    ++consumed_;
    post_receive();
  }
}

bool Queue::drained() {
  const std::lock_guard hold(lock_);
  if (oldest_ != next_ && !at(next_ - 1).signaled && room() > 0) // nothing would report the last
    post(Kind::tell, told_ = consumed_, 8, peer_.memory + offsetof(Memory, consumed), true);
  return oldest_ == next_;
}

uint64_t Queue::messages() {
  const std::lock_guard hold(lock_);
  return messages_;
}

uint64_t Queue::received() {
  const std::lock_guard hold(lock_);
  return consumed_;
}

void Queue::describe() {
  const std::lock_guard hold(lock_);
  if (oldest_ != next_)
    fprintf(stderr,
            "queue pair %u: requests %" PRIu64 " to %" PRIu64 " (kind %d) did not complete; "
            "%" PRIu64 " messages sent, %" PRIu64 " received\n",
            number_, oldest_, next_, static_cast<int>(at(oldest_).kind), messages_, consumed_);
}

} // namespace stress
