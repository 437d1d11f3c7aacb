// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "end.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace slow {
namespace {

std::atomic<unsigned> count_of_complaints{0};

constexpr unsigned all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// One write: both processes share the output.
void say(const char* what, const char* format, va_list args) {
  std::array<char, 400> line{};
  vsnprintf(line.data(), line.size(), format, args);
  printf("# %s%s\n", what, line.data());
  fflush(stdout);
}

} // namespace

void complain(const char* format, ...) {
  if (count_of_complaints++ >= 20)
    return;
  va_list args;
  va_start(args, format);
  say("BROKEN: ", format, args);
  va_end(args);
}

unsigned complaints() {
  return count_of_complaints;
}

void note(const char* format, ...) {
  va_list args;
  va_start(args, format);
  say("", format, args);
  va_end(args);
}

void must(bool good, const char* what) {
  if (good)
    return;
  printf("# BROKEN: %s failed: %s\n", what, strerror(errno));
  fflush(stdout);
  _Exit(99);
}

void must_not_hang(bool came, const char* what) {
  if (came)
    return;
  complain("hangs: %s", what);
  _Exit(1);
}

End::End(const Options& options, const Setup& setup, bool owner, int socket)
    : options_(options), socket_(socket) {
  int count = 0;
  ibv_device** devices = ibv_get_device_list(&count);
  must(devices != nullptr && count > 0, "ibv_get_device_list");
  context_ = ibv_open_device(devices[0]);
  ibv_free_device_list(devices);
  must(context_ != nullptr, "ibv_open_device");
  pd_ = ibv_alloc_pd(context_);
  must(pd_ != nullptr, "ibv_alloc_pd");
  const unsigned queues = usual_queues + setup.extra_queues;
  for (ibv_cq*& cq : cqs_) {
    cq = ibv_create_cq(context_, static_cast<int>(queues * depth), nullptr, nullptr, 0);
    must(cq != nullptr, "ibv_create_cq");
  }
  fast_ = make_region(2 * scratch);
  const size_t slow_pages = owner == setup.slow_at_owner ? setup.slow_pages : 0;
  // Touched but for the slow pages, which are registered while they are away.
  slow_.bytes = slow_at(slow_pages) + margin;
  slow_.memory = static_cast<std::byte*>(
      mmap(nullptr, slow_.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  must(slow_.memory != MAP_FAILED, "mmap");
  // Nor may a huge page bring them along.
  must(madvise(slow_.memory, slow_.bytes, MADV_NOHUGEPAGE) == 0, "madvise");
  size_t away = 0;
  for (size_t at = 0; at < slow_.bytes; at += page_bytes)
    if (away < slow_pages && at == slow_at(away))
      ++away;
    else
      memset(slow_.memory + at, 0, page_bytes);
  if (slow_pages != 0)
    pages_ = std::make_unique<SlowPages>(slow_.memory + margin, slow_pages);
  if (pages_ && options.pinned)
    pages_->come_when_asked();
  slow_.mr = ibv_reg_mr(pd_, slow_.memory, slow_.bytes,
                        slow_pages == 0 || setup.slow_is_remote ? all_rights
                                                                : int{IBV_ACCESS_LOCAL_WRITE});
  must(slow_.mr != nullptr, "ibv_reg_mr");
  for (size_t i = 0; options.pinned && i < slow_pages; ++i)
    must(matches(slow_page(i), page_bytes, SlowPages::value(i)), "bringing a page");
  for (unsigned i = 0; i < setup.known; ++i)
    known_.push_back(make_region(16 * page_bytes));
  for (unsigned i = 0; i < queues; ++i) {
    queues_.push_back(std::make_unique<Queue>());
    queues_.back()->qp = make_qp(cq_of(i));
  }
  connect();
}

End::~End() {
  stop_polling();
  for (unsigned i = 0; i < queues(); ++i)
    destroy_queue(i);
  for (Region& region : known_)
    end_region(region);
  end_region(fast_);
  end_region(slow_);
  for (ibv_cq* cq : cqs_)
    must(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
  must(ibv_dealloc_pd(pd_) == 0, "ibv_dealloc_pd");
  must(ibv_close_device(context_) == 0, "ibv_close_device");
}

Region End::make_region(size_t bytes) {
  Region region{nullptr, bytes, nullptr};
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  must(at != MAP_FAILED, "mmap");
  memset(at, 0, bytes);
  region.memory = static_cast<std::byte*>(at);
  region.mr = ibv_reg_mr(pd_, at, bytes, all_rights);
  must(region.mr != nullptr, "ibv_reg_mr");
  return region;
}

void End::end_region(Region& region) {
  if (region.mr != nullptr)
    must(ibv_dereg_mr(region.mr) == 0, "ibv_dereg_mr");
  munmap(region.memory, region.bytes);
  region = {};
}

ibv_qp* End::make_qp(unsigned cq) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cqs_[cq];
  init.qp_type = IBV_QPT_RC;
  init.cap = {depth, depth, 1, 1, small};
  ibv_qp* qp = ibv_create_qp(pd_, &init);
  must(qp != nullptr, "ibv_create_qp");
  return qp;
}

void End::destroy_queue(unsigned i) {
  if (queues_[i]->qp != nullptr)
    must(ibv_destroy_qp(queues_[i]->qp) == 0, "ibv_destroy_qp");
  queues_[i]->qp = nullptr;
}

void End::bring_up(ibv_qp* qp, uint32_t peer) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = all_rights;
  int rc = ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer;
  attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 1;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = 1;
  attr.ah_attr.grh.hop_limit = 64;
  rc |= ibv_query_gid(context_, 1, 1, &attr.ah_attr.grh.dgid);
  rc |= ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  attr.qp_state = IBV_QPS_RTS;
  attr.max_rd_atomic = 4;
  attr.timeout = 14;
  attr.retry_cnt = 7;
  attr.rnr_retry = 7;
  rc |= ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                          IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
  must(rc == 0, "ibv_modify_qp");
}

void End::connect() {
  const auto tell_region = [&](const Region& r) {
    tell(RemoteRegion{reinterpret_cast<uint64_t>(r.memory), r.mr->rkey});
  };
  tell_region(fast_);
  tell_region(slow_);
  for (const Region& region : known_)
    tell_region(region);
  for (const auto& queue : queues_)
    tell(queue->qp->qp_num);
  for (size_t i = 0; i < 2 + known_.size(); ++i)
    peer_.push_back(hear<RemoteRegion>());
  for (const auto& queue : queues_)
    bring_up(queue->qp, hear<uint32_t>());
  meet();
}

void End::post(unsigned queue, const Request& request) {
  Queue& q = *queues_[queue];
  ibv_sge sge{reinterpret_cast<uint64_t>(request.local), static_cast<uint32_t>(request.bytes),
              request.lkey};
  ibv_send_wr wr{};
  ibv_send_wr* bad = nullptr;
  wr.wr_id = uint64_t{queue} << 32 | q.posted;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = request.opcode;
  wr.send_flags = IBV_SEND_SIGNALED | request.flags;
  wr.wr.rdma.remote_addr = request.remote;
  wr.wr.rdma.rkey = request.rkey;
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic = {};
    wr.wr.atomic.remote_addr = request.remote;
    wr.wr.atomic.rkey = request.rkey;
  }
  q.posted_at = Clock::now();
  ++q.posted; // first: another thread may poll its completion
  must(ibv_post_send(q.qp, &wr, &bad) == 0, "ibv_post_send");
}

bool End::poll(unsigned cq) {
  std::array<ibv_wc, 16> batch;
  return poll(cq, batch.data(), static_cast<int>(batch.size()));
}

bool End::poll(unsigned cq, ibv_wc* into, int most) {
  const int n = ibv_poll_cq(cqs_[cq], most, into);
  must(n >= 0, "ibv_poll_cq");
  for (int i = 0; i < n; ++i) {
    const ibv_wc& wc = into[i];
    Queue& q = *queues_[wc.wr_id >> 32];
    if (wc.status != IBV_WC_SUCCESS)
      q.status = wc.status;
    // Those of one queue pair are polled by one thread, or in no particular order.
    if (!polled_by_many_ && (wc.wr_id & 0xFFFFFFFF) != q.done)
      complain("queue pair %u: request %" PRIu64 " completed in place of %" PRIu64,
               static_cast<unsigned>(wc.wr_id >> 32), wc.wr_id & 0xFFFFFFFF, q.done.load());
    q.done_at = Clock::now();
    ++q.done;
  }
  return n > 0;
}

bool End::poll() {
  const bool first = poll(0);
  return poll(1) || first;
}

bool End::wait(unsigned queue) {
  const auto end = Clock::now() + hangs;
  while (!idle(queue)) {
    must_not_hang(Clock::now() < end, "a completion");
    if (!poll())
      std::this_thread::yield();
  }
  return queues_[queue]->status == 0;
}

void End::start_polling() {
  polled_by_many_ = true;
  stop_polling_ = false;
  poller_ = std::thread([this] {
    while (!stop_polling_) {
      poll();
      ++polls_;
    }
  });
}

void End::await_polls(uint64_t more) {
  const uint64_t least = polls_ + more;
  const auto end = Clock::now() + hangs;
  while (polls_ < least) {
    must_not_hang(Clock::now() < end, "ibv_poll_cq while a page is away");
    std::this_thread::yield();
  }
}

void End::stop_polling() {
  stop_polling_ = true;
  if (poller_.joinable())
    poller_.join();
}

void End::send_bytes(const void* bytes, size_t count) {
  must(send(socket_, bytes, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count),
       "telling the other process");
}

void End::receive_bytes(void* bytes, size_t count) {
  must(recv(socket_, bytes, count, MSG_WAITALL) == static_cast<ssize_t>(count),
       "hearing from the other process");
}

bool End::awaited() {
  pollfd heard{socket_, POLLIN, 0};
  return ::poll(&heard, 1, 0) == 1;
}

void End::meet() {
  tell('!');
  hear<char>();
}

void End::away(size_t asked) {
  must_not_hang(options_.pinned || pages_->wait_asked(asked), "the slow page is not asked for");
  tell('.');
}

} // namespace slow
