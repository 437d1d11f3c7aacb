// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "side.h"

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>

namespace stress {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto silence_limit = std::chrono::seconds(60); // without any completion at all
constexpr auto event_limit = std::chrono::seconds(60);   // from a completion to its event
constexpr unsigned lives_least = 20;                     // of queue pairs that come and go
constexpr unsigned number_mask = 0x7FFFFF;
constexpr unsigned churned = number_mask; // wr_ids of queue pairs that come and go

void must(bool ok, const char* what) {
  if (ok)
    return;
  perror(what);
  _Exit(99);
}

} // namespace

Side::Side(const Options& options, int socket) : options_(options), socket_(socket) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  must(devices != nullptr && count > 0, "ibv_get_device_list");
  context_ = ibv_open_device(devices[0]);
  ibv_free_device_list(devices);
  must(context_ != nullptr, "ibv_open_device");
  pd_ = ibv_alloc_pd(context_);
  must(pd_ != nullptr, "ibv_alloc_pd");

  const int depth = static_cast<int>((options.queues / 4 + 1) * (window + receives) + 64);
  for (const Style style : {Style::plain, Style::together, Style::extended, Style::sleeping}) {
    auto c = std::make_unique<Completions>();
    c->style = style;
    if (style == Style::extended) {
      ibv_cq_init_attr_ex init{};
      init.cqe = static_cast<uint32_t>(depth);
      init.wc_flags = IBV_WC_STANDARD_FLAGS;
      c->extended = ibv_create_cq_ex(context_, &init);
      must(c->extended != nullptr, "ibv_create_cq_ex");
      c->cq = ibv_cq_ex_to_cq(c->extended);
    } else {
      if (style == Style::sleeping) {
        c->channel = ibv_create_comp_channel(context_);
        must(c->channel != nullptr, "ibv_create_comp_channel");
        fcntl(c->channel->fd, F_SETFL, fcntl(c->channel->fd, F_GETFL) | O_NONBLOCK);
      }
      c->cq = ibv_create_cq(context_, depth, nullptr, c->channel, 0);
      must(c->cq != nullptr, "ibv_create_cq");
    }
    cqs_.push_back(std::move(c));
  }
  for (unsigned i = 0; i < options.queues; ++i)
    queues_.push_back(std::make_unique<Queue>(pd_, cqs_[i % cqs_.size()]->cq, i));
}

Side::~Side() {
  queues_.clear();
  for (auto& c : cqs_) {
    must(ibv_destroy_cq(c->cq) == 0, "ibv_destroy_cq");
    if (c->channel != nullptr)
      must(ibv_destroy_comp_channel(c->channel) == 0, "ibv_destroy_comp_channel");
  }
  must(ibv_dealloc_pd(pd_) == 0, "ibv_dealloc_pd");
  must(ibv_close_device(context_) == 0, "ibv_close_device");
}

template <typename T> void Side::send(const T& value) {
  must(::send(socket_, &value, sizeof value, MSG_NOSIGNAL) == sizeof value, "send to the peer");
}

template <typename T> T Side::receive() {
  T value{};
  must(recv(socket_, &value, sizeof value, MSG_WAITALL) == sizeof value, "receive from the peer");
  return value;
}

void Side::connect() {
  for (auto& q : queues_)
    send(q->address());
  std::vector<Address> peers;
  for (size_t i = 0; i < queues_.size(); ++i)
    peers.push_back(receive<Address>());
  for (size_t i = 0; i < queues_.size(); ++i)
    must(queues_[i]->connect(context_, peers[i], peers[0]), "connecting queue pairs");
  send(char{});
  receive<char>();
}

void Side::hand_out(const ibv_wc& wc) {
  const auto number = static_cast<unsigned>(wc.wr_id >> 40) & number_mask;
  if (number != churned) // those go on whatever becomes of the others
    ++progress_;
  if (number < queues_.size())
    queues_[number]->on(wc);
  else if (number != churned)
    complain(completions, "a completion with wr_id %" PRIx64 " that nobody gave", wc.wr_id);
}

bool Side::poll_extended(Completions& from) {
  std::array<ibv_wc, 16> batch{};
  size_t n = 0;
  {
    const std::lock_guard alone(from.one_poller);
    ibv_poll_cq_attr attr{};
    if (ibv_start_poll(from.extended, &attr) != 0)
      return false;
    do {
      ibv_wc& wc = batch[n++];
      wc.wr_id = from.extended->wr_id;
      wc.status = from.extended->status;
      wc.opcode = ibv_wc_read_opcode(from.extended);
      wc.byte_len = ibv_wc_read_byte_len(from.extended);
      wc.imm_data = ibv_wc_read_imm_data(from.extended);
      wc.qp_num = ibv_wc_read_qp_num(from.extended);
    } while (n < batch.size() && ibv_next_poll(from.extended) == 0);
    ibv_end_poll(from.extended);
  }
  for (size_t i = 0; i < n; ++i)
    hand_out(batch[i]);
  return true;
}

bool Side::poll(Completions& from, unsigned entries) {
  if (from.style == Style::extended)
    return poll_extended(from);
  std::array<ibv_wc, 32> batch;
  const int n = ibv_poll_cq(from.cq, static_cast<int>(entries), batch.data());
  if (n < 0)
    complain(completions, "ibv_poll_cq: %d", n);
  for (int i = 0; i < n; ++i)
    hand_out(batch[static_cast<size_t>(i)]);
  return n > 0;
}

// Arms, looks once more, and sleeps until the channel says so. After a while it looks itself: what
// it finds must be announced, too, but a processor may be lost between a completion and its event.
void Side::sleep(Completions& from) {
  must(ibv_req_notify_cq(from.cq, 0) == 0, "ibv_req_notify_cq");
  if (poll(from, 32))
    return;
  pollfd fd{from.channel->fd, POLLIN, 0};
  const auto announced = [&](std::chrono::milliseconds limit) {
    return ::poll(&fd, 1, static_cast<int>(limit.count())) != 0;
  };
  if (!announced(std::chrono::milliseconds(500)) && poll(from, 32) && !announced(event_limit))
    complain(progress, "a completion did not wake its channel within %d s",
             static_cast<int>(event_limit.count()));
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  while (ibv_get_cq_event(from.channel, &cq, &unused) == 0)
    ibv_ack_cq_events(cq, 1);
}

void Side::work(unsigned thread) {
  Completions& mine = *cqs_[thread % cqs_.size()];
  std::minstd_rand random(thread + 1);
  uint64_t seen = progress_;
  auto moved = Clock::now();
  // Queue pairs of this thread to post to: any thread may get their completions.
  const auto each = [&](auto&& f) {
    for (size_t i = thread; i < queues_.size(); i += options_.threads)
      f(*queues_[i], i);
  };
  bool counted = false;
  std::vector<unsigned> worked(queues_.size()); // of this thread's
  for (;;) {
    bool over =
        options_.operations != 0 ||
        (options_.until != nullptr ? access(options_.until, F_OK) == 0 : Clock::now() >= end_);
    bool any = false;
    if (options_.operations != 0)
      each([&](Queue& q, size_t i) {
        if (worked[i] < options_.operations) {
          worked[i] += q.work(random) ? 1 : 0;
          over = false;
        }
      });
    else if (!over)
      each([&](Queue& q, size_t) { q.work(random); });
    while (poll(mine, 1 + random() % 32))
      any = true;
    // One thread of the queue's pollers sleeps now and then; the others go on posting.
    if (mine.style == Style::sleeping && thread < cqs_.size() && !any)
      sleep(mine);
    if (over) {
      bool done = true;
      const bool known = settled_;
      each([&](Queue& q, size_t i) {
        done = q.drained() && done;
        done = done && (!known || q.received() == peer_messages_[i]);
      });
      if (done && !counted) {
        counted = true;
        --working_;
      }
      if (done && known)
        return;
      if (!any)
        std::this_thread::yield();
    }
    if (const uint64_t now = progress_; now != seen) {
      seen = now;
      moved = Clock::now();
    } else if (Clock::now() - moved > silence_limit) {
      complain(progress, "nothing completed for %d s", static_cast<int>(silence_limit.count()));
      each([](Queue& q, size_t) { q.describe(); });
      fflush(stderr);
      if (getenv("STRESS_STOP") != nullptr)
        abort();
      _Exit(static_cast<int>(broken()));
    }
  }
}

// Each side learns how many messages the other has sent, so that it knows when it has them all.
void Side::settle() {
  while (working_ != 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (auto& q : queues_)
    send(q->messages());
  for (size_t i = 0; i < queues_.size(); ++i)
    peer_messages_.push_back(receive<uint64_t>());
  settled_ = true;
}

// Queue pairs of short life on the busy completion queues, connected to themselves, destroyed with
// requests under way.
void Side::churn() {
  std::minstd_rand random(99);
  for (unsigned lives = 0; !stop_churn_ || lives < lives_least; ++lives) {
    const size_t bytes = 1 + random() % 100000;
    auto* memory = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ibv_mr* mr =
        ibv_reg_mr(pd_, memory, bytes,
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cqs_[random() % 2]->cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 1, 1, 1, 0};
    ibv_qp* qp = ibv_create_qp(pd_, &init);
    must(mr != nullptr && qp != nullptr, "a queue pair of short life");
    const auto modify = [&](ibv_qp_attr& attr, int mask) { ibv_modify_qp(qp, &attr, mask); };
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    attr.ah_attr.grh.hop_limit = 64;
    ibv_query_gid(context_, 1, 1, &attr.ah_attr.grh.dgid);
    modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr.qp_state = IBV_QPS_RTS;
    attr.max_rd_atomic = 1;
    attr.timeout = 14;
    attr.retry_cnt = attr.rnr_retry = 7;
    modify(attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    for (unsigned i = 0; i < 8; ++i) {
      ibv_sge sge{reinterpret_cast<uint64_t>(memory), static_cast<uint32_t>(bytes / 2), mr->lkey};
      ibv_send_wr wr{};
      ibv_send_wr* bad = nullptr;
      wr.wr_id = uint64_t{churned} << 40;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = random() % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
      wr.send_flags = random() % 2 == 0 ? static_cast<unsigned>(IBV_SEND_SIGNALED) : 0;
      wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory) + bytes / 2;
      wr.wr.rdma.rkey = mr->rkey;
      ibv_post_send(qp, &wr, &bad);
    }
    if (random() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    const unsigned how = random() % 3;
    attr.qp_state = how == 0 ? IBV_QPS_ERR : IBV_QPS_RESET;
    if (how != 2)
      modify(attr, IBV_QP_STATE);
    must(ibv_destroy_qp(qp) == 0, "destroying a queue pair of short life");
    must(ibv_dereg_mr(mr) == 0, "deregistering its region");
    munmap(memory, bytes);
  }
}

void Side::run() {
  connect();
  end_ = Clock::now() + std::chrono::seconds(options_.seconds);
  working_ = options_.threads;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < options_.threads; ++t)
    threads.emplace_back([this, t] { work(t); });
  std::thread churner;
  if (options_.churn)
    churner = std::thread([this] { churn(); });
  settle();
  for (auto& t : threads)
    t.join();
  stop_churn_ = true;
  if (churner.joinable())
    churner.join();

  // All of ours is done, and all of theirs by the time they say so.
  struct Sums {
    uint64_t added, count;
  } sums{};
  for (auto& q : queues_) {
    sums.added += q->added_sum();
    sums.count += q->added_count();
    operations_ += q->operations();
    if (q->operations() < window)
      complain(progress, "a queue pair carried out %" PRIu64 " requests only", q->operations());
  }
  send(sums);
  const auto theirs = receive<Sums>();
  const uint64_t word = queues_[0]->memory().added;
  if (word != theirs.count || theirs.added != theirs.count * (theirs.count - 1) / 2)
    complain(atomics,
             "fetch-and-add by %" PRIu64 " operations left %" PRIu64 "; what they met sums to "
             "%" PRIu64,
             theirs.count, word, theirs.added);
  send(char{});
  receive<char>();
}

} // namespace stress
