// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The commands a driver gives to an agent (the side of a test that owns verbs objects), and their
// replies. Plain structs: the same binary sits at both ends of the control socket, so they travel
// as they are. Objects are named by small numbers handed out by the agent; addresses, keys and QP
// numbers are the agent's real ones, so that the driver can also forge wrong ones.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace verify {

constexpr int max_wrs = 64;
constexpr int max_sges = 32;
constexpr int max_wcs = 256;
constexpr int max_ranges = 256;

enum class Api : int { classic, extended };
enum class Wait : int { spin, event };

// err is an errno value (0 = success); id names the object when err is 0.
struct Outcome {
  int err = 0;
  int id = -1;
};

struct SideInfo {
  int err;
  int pid;
  union ibv_gid gid;
  uint16_t lid;
  int active_mtu;
  int is_roce;
  struct ibv_device_attr dev;
};

struct BufInfo {
  int err;
  int id;
  uint64_t addr;
  uint64_t size;
};

struct MrInfo {
  int err = 0;
  int id = -1;
  uint32_t lkey = 0, rkey = 0;
  uint64_t addr = 0; // what remote and local requests use: the iova
  uint64_t size = 0;
};

struct CqInfo {
  int err;
  int id;
  int cqe;
};

struct QpInfo {
  int err = 0;
  int id = -1;
  uint32_t qpn = 0;
  struct ibv_qp_cap cap = {};
};

struct QpState {
  int err;
  int state; // ibv_qp_state
  int access;
  int draining;
};

struct PostResult {
  int err;
  int bad; // index of the request bad_wr points to, -1 when untouched or not one of the list
};

struct Wc {
  uint64_t wr_id;
  int status;
  int opcode;
  uint32_t byte_len;
  uint32_t flags;
  uint32_t imm; // host order
  int qp;       // agent's number of the QP whose qp_num it carries, -1 for none
  uint32_t src_qp;
};

struct WcList {
  int n = 0;
  int wakeups = 0; // events consumed in event mode
  Wc wc[max_wcs];
  size_t wire_size() const { return offsetof(WcList, wc) + sizeof(Wc) * static_cast<size_t>(n); }
};

struct Event {
  int got;
  int type; // ibv_event_type
  int own;  // the event names an object this side owns
};

struct Verdict {
  uint64_t bad = 0;   // wrong bytes
  uint64_t first = 0; // offset of the first of them
};

struct Number {
  uint64_t value;
};

struct SpinResult {
  uint64_t seen;     // observations made
  uint64_t distinct; // different values among them
  uint64_t torn;     // values that were never written
  uint64_t backward; // values older than one seen before
};

struct SendWr {
  uint64_t wr_id;
  int opcode; // ibv_wr_opcode
  uint32_t flags;
  uint32_t imm; // host order
  uint64_t remote_addr;
  uint32_t rkey;
  uint64_t compare_add, swap;
  int ah;
  uint32_t remote_qpn, remote_qkey;
  int num_sge;
  struct ibv_sge sge[max_sges];
};

struct RecvWr {
  uint64_t wr_id;
  int num_sge;
  struct ibv_sge sge[max_sges];
};

// --- commands; each names its reply ---------------------------------------------------------

struct Open {
  using Reply = SideInfo;
  char device[64] = {};
  int gid_index = -1; // -1: the first IPv4 RoCE v2 entry, else 0
};
struct Reset { // destroy every object of this side but the device
  using Reply = Outcome;
};
struct AllocPd {
  using Reply = Outcome;
};
struct DeallocPd {
  using Reply = Outcome;
  int pd;
};
struct MakeBuf { // private anonymous memory, page-aligned, filled with the pattern of `seed`
  using Reply = BufInfo;
  uint64_t size;
  uint64_t seed;
};
enum class Backing : int { shared_memory, memfd, private_memfd, private_file };
struct MapFile { // a file of `file_size` bytes, zeros, mapped for `size`, which may be more
  using Reply = BufInfo;
  Backing backing;
  uint64_t size, file_size;
};
struct Protect {
  using Reply = Outcome;
  uint64_t addr, size;
  int prot; // -1: munmap, then an inaccessible mapping in its place; -2: munmap, leaving a hole
};
struct Fill { // bytes [addr, addr+size) := pattern(seed, from...)
  using Reply = Outcome;
  uint64_t addr, size, seed, from;
};
struct Range {
  uint64_t off, size, seed, from;
};
struct Check { // [addr, addr+size) carries pattern(seed, from...) except for the ranges given
  using Reply = Verdict;
  uint64_t addr, size, seed, from = 0;
  int timeout_ms = 0; // looks again until all is right: for what no completion announces
  int n = 0;
  Range range[max_ranges];
  size_t wire_size() const {
    return offsetof(Check, range) + sizeof(Range) * static_cast<size_t>(n);
  }
};
struct Peek { // one naturally aligned load of 8 bytes
  using Reply = Number;
  uint64_t addr;
};
struct Poke {
  using Reply = Outcome;
  uint64_t addr, value;
};
struct AwaitByte { // spins on the byte at addr until it is `value`; then checks like Check
  using Reply = Verdict;
  uint64_t addr;
  uint64_t watch;
  uint64_t size, seed, from;
  int value;
  int timeout_ms;
};
struct RegMr {
  using Reply = MrInfo;
  int pd;
  uint64_t addr, size;
  int access;
  uint64_t iova = 0;
  int with_iova = 0;
};
struct DeregMr {
  using Reply = Outcome;
  int mr;
};
struct ReregMr {
  using Reply = MrInfo;
  int mr;
  int flags;
  int pd;
  uint64_t addr, size;
  int access;
};
struct CreateCq {
  using Reply = CqInfo;
  int cqe = 256;
  int channel = 0; // with a completion channel of its own (1), or that of another CQ (-1 - cq)
  Api api = Api::classic;
};
struct ResizeCq {
  using Reply = CqInfo;
  int cq;
  int cqe;
};
struct DestroyCq {
  using Reply = Outcome;
  int cq;
};
struct ArmCq {
  using Reply = Outcome;
  int cq;
  int solicited;
};
struct AwaitCqEvent { // got: an event came; own: it named this CQ. Acknowledged at once.
  using Reply = Event;
  int cq;
  int timeout_ms;
};
// Until `want` completions are there or the time is up. librxe's ibv_end_poll takes one completion
// too many when the last ibv_next_poll found none (seen with rdma-core 44: completions of nobody
// follow), so ibv_next_poll is called only where the driver knows that `certain` completions are
// there.
struct Poll {
  using Reply = WcList;
  int cq;
  int want;
  int timeout_ms = 60000;
  Wait wait = Wait::spin;
  int certain = 1;
  bool arm_within = false; // extended CQs: arm between ibv_start_poll and ibv_end_poll
  bool one = false;        // one entry a call: none taken means that the CQ is empty
};
struct CreateSrq {
  using Reply = Outcome;
  int pd;
  int depth, max_sge;
};
struct LimitSrq {
  using Reply = Outcome;
  int srq;
  int limit;
};
struct CreateAh {
  using Reply = Outcome;
  int pd;
  union ibv_gid dgid;
  uint16_t dlid;
};
struct CreateQp {
  using Reply = QpInfo;
  int pd, send_cq, recv_cq;
  int srq = -1;
  int type = IBV_QPT_RC;
  int sq_sig_all = 0;
  Api api = Api::classic;
  struct ibv_qp_cap cap = {};
};
struct ModifyQp { // to a state with everything that state asks for
  using Reply = Outcome;
  int qp;
  int state;
  int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  uint32_t dest_qpn = 0;
  union ibv_gid dgid = {};
  uint16_t dlid = 0;
  int mtu = 0;
  int rnr_timer = 1; // 10 us
  int rnr_retry = 7;
  int timeout = 17; // 0.54 s: an emulated CPU is slow, a lost packet is rare
  int retry_cnt = 7;
  int sqd_notify = 0;
  int rd_atomic = 4;
};
struct QueryQp { // waits up to wait_ms for `state` when that is not negative
  using Reply = QpState;
  int qp;
  int state = -1;
  int wait_ms = 0;
};
struct DestroyQp {
  using Reply = Outcome;
  int qp;
};
struct PostSend {
  using Reply = PostResult;
  int qp;
  Api api = Api::classic;
  int n = 0;
  SendWr wr[max_wrs];
  size_t wire_size() const {
    return offsetof(PostSend, wr) + sizeof(SendWr) * static_cast<size_t>(n);
  }
};
struct PostRecv {
  using Reply = PostResult;
  int qp = -1;
  int srq = -1;
  int n = 0;
  RecvWr wr[max_wrs];
  size_t wire_size() const {
    return offsetof(PostRecv, wr) + sizeof(RecvWr) * static_cast<size_t>(n);
  }
};
struct NextEvent { // next async event, or got = 0 after timeout_ms
  using Reply = Event;
  int timeout_ms;
};
struct StartSpin { // a thread loads the 8 bytes at addr over and over: hi32 must equal ~lo32
  using Reply = Outcome;
  uint64_t addr;
};
struct StopSpin {
  using Reply = SpinResult;
};
struct Storm { // `threads` threads each WRITE `ops` times through their own QP, one CQ polled by
               // all
  using Reply = Verdict; // bad: completions lost, failed, doubled or out of order per QP
  int threads, ops, cq;
  int qp[16];
  uint64_t local, remote;
  uint32_t lkey, rkey, size;
};
struct Signal { // SIGKILL: and waits until the process is gone
  using Reply = Outcome;
  int pid;
  int signal;
};
struct Daemonise { // fork, the parent leaves, the child goes on serving
  using Reply = SideInfo;
};
struct Exit { // leave at once, as main() returning does, without destroying anything
  using Reply = Outcome;
};

using Commands = std::tuple<Open, Reset, AllocPd, DeallocPd, MakeBuf, MapFile, Protect, Fill, Check,
                            Peek, Poke, AwaitByte, RegMr, DeregMr, ReregMr, CreateCq, ResizeCq,
                            DestroyCq, ArmCq, AwaitCqEvent, Poll, CreateSrq, LimitSrq, CreateAh,
                            CreateQp, ModifyQp, QueryQp, DestroyQp, PostSend, PostRecv, NextEvent,
                            StartSpin, StopSpin, Storm, Signal, Daemonise, Exit>;

} // namespace verify
