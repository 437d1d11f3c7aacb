// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The agent's objects: making, changing and destroying them.
#include "agent.h"

#include "pattern.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace verify {
namespace {

template <class T> int keep(std::vector<T>& table, T object) {
  table.push_back(object);
  return static_cast<int>(table.size()) - 1;
}

template <class T> T at(const std::vector<T>& table, int id) {
  return id >= 0 && id < static_cast<int>(table.size()) ? table[static_cast<size_t>(id)] : T{};
}

// Destroys table[id]; the slot stays empty so that numbers are never used twice within a case.
template <class T, class F> Outcome destroy(std::vector<T>& table, int id, F&& f) {
  T object = at(table, id);
  if (!object)
    return {EBADF, -1};
  int err = f(object);
  if (!err)
    table[static_cast<size_t>(id)] = nullptr;
  return {err, id};
}

void set_nonblocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// The GID every perftest user would pick: IPv4 over RoCE v2; the first one otherwise.
int pick_gid(ibv_context* context, int wanted, union ibv_gid* gid) {
  if (wanted < 0) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    struct ibv_gid_entry e;
    for (uint32_t i = 0; i < 64 && wanted < 0; ++i)
      if (!ibv_query_gid_ex(context, 1, i, &e, 0) && e.gid_type == IBV_GID_TYPE_ROCE_V2 &&
          !std::memcmp(e.gid.raw, mapped, sizeof mapped))
        wanted = static_cast<int>(i);
    if (wanted < 0)
      wanted = 0;
  }
  ibv_query_gid(context, 1, wanted, gid);
  return wanted;
}

int gid_index;

} // namespace

uint64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000 + static_cast<uint64_t>(t.tv_nsec) / 1000000;
}

Agent::~Agent() {
  exec(Reset{});
  if (context_)
    ibv_close_device(context_);
}

SideInfo Agent::exec(const Open& c) {
  if (context_)
    return info_;
  int n = 0;
  ibv_device** list = ibv_get_device_list(&n);
  for (int i = 0; list && i < n && !context_; ++i)
    if (!c.device[0] || !std::strcmp(ibv_get_device_name(list[i]), c.device))
      context_ = ibv_open_device(list[i]);
  if (list)
    ibv_free_device_list(list);
  if (!context_) {
    info_.err = ENODEV;
    return info_;
  }
  set_nonblocking(context_->async_fd);
  ibv_port_attr port = {};
  info_.err = ibv_query_device(context_, &info_.dev);
  if (!info_.err)
    info_.err = ibv_query_port(context_, 1, &port);
  info_.pid = getpid();
  info_.lid = port.lid;
  info_.active_mtu = port.active_mtu;
  info_.is_roce = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  gid_index = pick_gid(context_, c.gid_index, &info_.gid);
  return info_;
}

Outcome Agent::exec(const Reset&) {
  int err = 0;
  auto note = [&](int e) { err = err ? err : e; };
  if (spinner_.joinable())
    exec(StopSpin{});
  for (auto& q : qps_)
    if (q.qp)
      note(ibv_destroy_qp(q.qp));
  for (auto* s : srqs_)
    if (s)
      note(ibv_destroy_srq(s));
  for (auto* a : ahs_)
    note(ibv_destroy_ah(a));
  for (auto* m : mrs_)
    if (m)
      note(ibv_dereg_mr(m));
  for (auto& q : cqs_)
    if (q.cq)
      note(ibv_destroy_cq(q.cq));
  for (auto* ch : channels_)
    note(ibv_destroy_comp_channel(ch));
  for (auto* p : pds_)
    if (p)
      note(ibv_dealloc_pd(p));
  for (auto& b : bufs_)
    munmap(b.addr, b.size);
  qps_.clear(), srqs_.clear(), ahs_.clear(), mrs_.clear(), cqs_.clear(), channels_.clear();
  pds_.clear(), bufs_.clear();
  while (context_ && exec(NextEvent{0}).got) // what one case left unread is not the next one's
    ;
  return {err, 0};
}

Outcome Agent::exec(const AllocPd&) {
  ibv_pd* pd = ibv_alloc_pd(context_);
  return pd ? Outcome{0, keep(pds_, pd)} : Outcome{errno, -1};
}

Outcome Agent::exec(const DeallocPd& c) {
  return destroy(pds_, c.pd, ibv_dealloc_pd);
}

BufInfo Agent::exec(const MakeBuf& c) {
  uint64_t size = (c.size + 4095) & ~uint64_t{4095};
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    return {errno, -1, 0, 0};
  fill(static_cast<uint8_t*>(p), size, c.seed, 0);
  return {0, keep(bufs_, Buf{p, size}), reinterpret_cast<uint64_t>(p), size};
}

BufInfo Agent::exec(const MapFile& c) {
  const std::string name = "/adverb-verify." + std::to_string(getpid());
  char path[] = "/var/tmp/adverb-verify-XXXXXX";
  int fd = -1;
  if (c.backing == Backing::shared_memory) {
    fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    shm_unlink(name.c_str());
  } else if (c.backing == Backing::private_file) {
    fd = mkstemp(path);
    unlink(path);
  } else {
    fd = memfd_create("verify", MFD_CLOEXEC);
  }
  if (fd < 0)
    return {errno, -1, 0, 0};
  const bool shared = c.backing == Backing::shared_memory || c.backing == Backing::memfd;
  void* p = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(c.file_size)) == 0)
    p = mmap(nullptr, c.size, PROT_READ | PROT_WRITE, shared ? MAP_SHARED : MAP_PRIVATE, fd, 0);
  const int err = errno;
  close(fd);
  if (p == MAP_FAILED)
    return {err, -1, 0, 0};
  return {0, keep(bufs_, Buf{p, c.size}), reinterpret_cast<uint64_t>(p), c.size};
}

Outcome Agent::exec(const Protect& c) {
  void* p = reinterpret_cast<void*>(c.addr);
  int rc = c.prot < 0 ? munmap(p, c.size) : mprotect(p, c.size, c.prot);
  if (!rc && c.prot == -1) // keep the addresses ours, or Reset would unmap a stranger's memory
    (void)mmap(p, c.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  return {rc ? errno : 0, 0};
}

MrInfo Agent::exec(const RegMr& c) {
  void* p = reinterpret_cast<void*>(c.addr);
  errno = 0;
  ibv_mr* mr = c.with_iova ? ibv_reg_mr_iova(at(pds_, c.pd), p, c.size, c.iova, c.access)
                           : ibv_reg_mr(at(pds_, c.pd), p, c.size, c.access);
  if (!mr)
    return {errno, -1, 0, 0, c.addr, c.size};
  return {0, keep(mrs_, mr), mr->lkey, mr->rkey, c.with_iova ? c.iova : c.addr, c.size};
}

Outcome Agent::exec(const DeregMr& c) {
  return destroy(mrs_, c.mr, ibv_dereg_mr);
}

MrInfo Agent::exec(const ReregMr& c) {
  ibv_mr* mr = at(mrs_, c.mr);
  errno = 0;
  int rc = ibv_rereg_mr(mr, c.flags, c.pd < 0 ? nullptr : at(pds_, c.pd),
                        reinterpret_cast<void*>(c.addr), c.size, c.access);
  // ibv_rereg_mr answers with its own IBV_REREG_MR_ERR_* and leaves the cause in errno.
  return {rc ? (errno ? errno : EIO) : 0,       c.mr,      mr->lkey, mr->rkey,
          reinterpret_cast<uint64_t>(mr->addr), mr->length};
}

CqInfo Agent::exec(const CreateCq& c) {
  Cq q = {};
  if (c.channel > 0) {
    q.channel = ibv_create_comp_channel(context_);
    if (!q.channel)
      return {errno, -1, 0};
    channels_.push_back(q.channel);
  } else if (c.channel < 0) {
    q.channel = cqs_.at(static_cast<size_t>(-1 - c.channel)).channel;
  }
  errno = 0;
  if (c.api == Api::extended) {
    ibv_cq_init_attr_ex a = {};
    a.cqe = static_cast<uint32_t>(c.cqe);
    a.channel = q.channel;
    a.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                 IBV_WC_EX_WITH_SRC_QP;
    q.ex = ibv_create_cq_ex(context_, &a);
    q.cq = q.ex ? ibv_cq_ex_to_cq(q.ex) : nullptr;
  } else {
    q.cq = ibv_create_cq(context_, c.cqe, nullptr, q.channel, 0);
  }
  if (!q.cq)
    return {errno, -1, 0};
  return {0, keep(cqs_, q), q.cq->cqe};
}

CqInfo Agent::exec(const ResizeCq& c) {
  ibv_cq* cq = at(cqs_, c.cq).cq;
  int err = ibv_resize_cq(cq, c.cqe);
  return {err, c.cq, cq->cqe};
}

Outcome Agent::exec(const DestroyCq& c) {
  Cq& q = cqs_.at(static_cast<size_t>(c.cq));
  int err = ibv_destroy_cq(q.cq);
  if (!err)
    q.cq = nullptr;
  return {err, c.cq};
}

Outcome Agent::exec(const CreateSrq& c) {
  ibv_srq_init_attr a = {};
  a.attr.max_wr = static_cast<uint32_t>(c.depth);
  a.attr.max_sge = static_cast<uint32_t>(c.max_sge);
  ibv_srq* srq = ibv_create_srq(at(pds_, c.pd), &a);
  return srq ? Outcome{0, keep(srqs_, srq)} : Outcome{errno, -1};
}

Outcome Agent::exec(const LimitSrq& c) {
  ibv_srq_attr a = {};
  a.srq_limit = static_cast<uint32_t>(c.limit);
  return {ibv_modify_srq(at(srqs_, c.srq), &a, IBV_SRQ_LIMIT), c.srq};
}

Outcome Agent::exec(const CreateAh& c) {
  ibv_ah_attr a = {};
  a.dlid = c.dlid;
  a.port_num = 1;
  a.is_global = info_.is_roce;
  a.grh.dgid = c.dgid;
  a.grh.sgid_index = static_cast<uint8_t>(gid_index);
  a.grh.hop_limit = 64;
  ibv_ah* ah = ibv_create_ah(at(pds_, c.pd), &a);
  return ah ? Outcome{0, keep(ahs_, ah)} : Outcome{errno, -1};
}

QpInfo Agent::exec(const CreateQp& c) {
  Qp q = {};
  q.type = c.type;
  ibv_qp_init_attr_ex a = {};
  a.send_cq = at(cqs_, c.send_cq).cq;
  a.recv_cq = at(cqs_, c.recv_cq).cq;
  a.srq = c.srq < 0 ? nullptr : at(srqs_, c.srq);
  a.cap = c.cap;
  a.qp_type = static_cast<ibv_qp_type>(c.type);
  a.sq_sig_all = c.sq_sig_all;
  a.pd = at(pds_, c.pd);
  a.comp_mask = IBV_QP_INIT_ATTR_PD;
  errno = 0;
  if (c.api == Api::extended) {
    a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (c.type != IBV_QPT_UD)
      a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    if (c.type == IBV_QPT_RC)
      a.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    q.qp = ibv_create_qp_ex(context_, &a);
    q.ex = q.qp ? ibv_qp_to_qp_ex(q.qp) : nullptr;
  } else {
    ibv_qp_init_attr i = {};
    i.send_cq = a.send_cq, i.recv_cq = a.recv_cq, i.srq = a.srq, i.cap = a.cap;
    i.qp_type = a.qp_type, i.sq_sig_all = a.sq_sig_all;
    q.qp = ibv_create_qp(a.pd, &i);
    a.cap = i.cap;
  }
  if (!q.qp)
    return {errno, -1, 0, {}};
  return {0, keep(qps_, q), q.qp->qp_num, a.cap};
}

Outcome Agent::exec(const DestroyQp& c) {
  Qp& q = qps_.at(static_cast<size_t>(c.qp));
  int err = ibv_destroy_qp(q.qp);
  if (!err)
    q.qp = nullptr;
  return {err, c.qp};
}

int Agent::qp_by_number(uint32_t qpn) const {
  for (size_t i = 0; i < qps_.size(); ++i)
    if (qps_[i].qp && qps_[i].qp->qp_num == qpn)
      return static_cast<int>(i);
  return -1;
}

Outcome Agent::exec(const ModifyQp& c) {
  const Qp q = at(qps_, c.qp);
  const bool rc = q.type == IBV_QPT_RC, ud = q.type == IBV_QPT_UD;
  ibv_qp_attr a = {};
  int mask = IBV_QP_STATE;
  a.qp_state = static_cast<ibv_qp_state>(c.state);
  if (c.state == IBV_QPS_INIT) {
    mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    a.port_num = 1;
    a.qkey = 0x11111111;
    a.qp_access_flags = static_cast<unsigned>(c.access);
  } else if (c.state == IBV_QPS_RTR && !ud) {
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (rc)
      mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    a.path_mtu = static_cast<ibv_mtu>(c.mtu);
    a.dest_qp_num = c.dest_qpn;
    a.rq_psn = c.dest_qpn & 0xffffff; // each side starts at its own number: known without asking
    a.max_dest_rd_atomic = static_cast<uint8_t>(c.rd_atomic);
    a.min_rnr_timer = static_cast<uint8_t>(c.rnr_timer);
    a.ah_attr.port_num = 1;
    a.ah_attr.dlid = c.dlid;
    a.ah_attr.is_global = info_.is_roce;
    a.ah_attr.grh.dgid = c.dgid;
    a.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
    a.ah_attr.grh.hop_limit = 64;
  } else if (c.state == IBV_QPS_RTS) {
    ibv_qp_attr now = {};
    ibv_qp_init_attr init = {};
    ibv_query_qp(q.qp, &now, IBV_QP_STATE, &init);
    if (now.qp_state != IBV_QPS_SQD) {
      mask |= IBV_QP_SQ_PSN;
      a.sq_psn = q.qp->qp_num & 0xffffff;
      if (rc)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
      a.timeout = static_cast<uint8_t>(c.timeout);
      a.retry_cnt = static_cast<uint8_t>(c.retry_cnt);
      a.rnr_retry = static_cast<uint8_t>(c.rnr_retry);
      a.max_rd_atomic = static_cast<uint8_t>(c.rd_atomic);
    }
  } else if (c.state == IBV_QPS_SQD && c.sqd_notify) {
    mask |= IBV_QP_EN_SQD_ASYNC_NOTIFY;
    a.en_sqd_async_notify = 1;
  }
  return {ibv_modify_qp(q.qp, &a, mask), c.qp};
}

QpState Agent::exec(const QueryQp& c) {
  ibv_qp* qp = at(qps_, c.qp).qp;
  const uint64_t end = now_ms() + static_cast<uint64_t>(c.wait_ms);
  for (;;) {
    ibv_qp_attr a = {};
    ibv_qp_init_attr init = {};
    int err = ibv_query_qp(qp, &a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, &init);
    if (err || c.state < 0 || a.qp_state == c.state || now_ms() >= end)
      return {err, a.qp_state, static_cast<int>(a.qp_access_flags), a.sq_draining};
    usleep(1000);
  }
}

Outcome Agent::exec(const Signal& c) {
  int err = kill(c.pid, c.signal) ? errno : 0;
  // A killed process is gone when it is a zombie: by then the kernel has closed its device.
  const std::string path = "/proc/" + std::to_string(c.pid) + "/stat";
  for (const uint64_t end = now_ms() + 60000; c.signal == SIGKILL && now_ms() < end; usleep(1000)) {
    char text[512] = "";
    FILE* f = std::fopen(path.c_str(), "r");
    if (!f)
      break;
    const size_t n = std::fread(text, 1, sizeof text - 1, f);
    std::fclose(f);
    const char* state = n ? std::strrchr(text, ')') : nullptr;
    if (!state || state[2] == 'Z' || state[2] == 'X')
      break;
  }
  return {err, 0};
}

} // namespace verify
