// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a case is written with: two sides, a connected pair of QPs, requests, and a log in which
// every observation is one line `case | step | what was seen`. A line never holds a number that
// may differ between two correct runs (addresses, keys, QP numbers, times), so that two logs can be
// compared line by line.
#pragma once

#include "awaited.h"
#include "side.h"
#include "wire.h"

#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace verify {

constexpr uint64_t seed_a = 0xa, seed_b = 0xb; // what buffers hold at first
constexpr int remote_all =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct Options {
  uint64_t seed = 1;
  bool full = false;
  bool strict = false; // also log fields the manual leaves undefined
  int case_timeout_s = 90;
  Awaited awaited;
};

class Log {
public:
  explicit Log(FILE* to) : to_(to) {}
  void line(const char* test, const char* step, const char* text);
  void bad() { ++bad_; } // an observation that is wrong whatever a stock run says
  int bad_count() const { return bad_; }

private:
  FILE* to_;
  int bad_ = 0;
};

struct PairOptions {
  int type = IBV_QPT_RC;
  Api post = Api::classic, poll = Api::classic;
  bool channel = false;
  bool sig_all = false;
  bool one_cq = false; // send and receive completions of a side share a CQ
  uint32_t sq = 64, rq = 64, sge = 4, inline_data = 0;
  uint64_t size_a = 65536, size_b = 65536;
  int mr_a = IBV_ACCESS_LOCAL_WRITE;
  int mr_b = IBV_ACCESS_LOCAL_WRITE | remote_all;
  int qp_a = remote_all, qp_b = remote_all;
  int timeout = 17, retry = 7, rnr_retry = 7, rnr_timer = 1;
  int dest_rd_atomic_b = 4; // responder resources of b
  bool connect = true;
  const struct Pair* share = nullptr; // use that pair's PDs, buffers and regions
};

// One side's objects. `s` stays valid as long as the case.
struct End {
  Side* s = nullptr;
  const char* name = "";
  int pd = -1;
  CqInfo scq = {}, rcq = {};
  QpInfo qp = {};
  BufInfo buf = {};
  MrInfo mr = {};
  int ah = -1;
  int type = IBV_QPT_RC;
};

class Case;

struct Pair {
  Pair(Case& c, Side& a, Side& b, PairOptions o = {});

  // A request of a's to b, signalled; offsets are into the two buffers.
  SendWr wr(int opcode, uint64_t id, uint64_t at_a, uint32_t size, uint64_t at_b) const;
  // The same from b to a (a's region must allow it).
  SendWr reverse(int opcode, uint64_t id, uint64_t at_b, uint32_t size, uint64_t at_a) const;
  void connect();
  void to_rts(End& e, const End& other); // from INIT on

  Case& c;
  PairOptions o;
  End a, b;
};

RecvWr recv_wr(const End& e, uint64_t id, uint64_t at, uint32_t size);

class Case {
public:
  Case(std::string name, Log& log, const Options& o, Side& a, Side& b,
       std::function<Side()> new_peer)
      : name(std::move(name)), options(o), a(a), b(b), new_peer(std::move(new_peer)), log_(log) {}

  void say(const char* step, const char* format, ...) __attribute__((format(printf, 3, 4)));
  // Logs `ok` or `BAD`; for what no run may get wrong.
  void expect(const char* step, const char* what, bool good);
  void result(const char* step, int err); // an errno by name

  int post(const char* step, End& e, std::vector<SendWr> wrs, Api api = Api::classic);
  int recv(const char* step, End& e, std::vector<RecvWr> wrs, int srq = -1);
  // Polls for `want` completions and logs each; the list comes back in polled order.
  WcList poll(const char* step, End& e, const CqInfo& cq, int want, int timeout_ms = hang_ms);
  WcList sends(const char* step, End& e, int want, int timeout_ms = hang_ms);
  WcList recvs(const char* step, End& e, int want, int timeout_ms = hang_ms);
  // The state of e's QP, waited for if it is still to come, without log.
  int state(End& e, int expected, int wait_ms);
  void log_state(const char* step, End& e, int expected);
  // All async events of that side, sorted: until those awaited are there, or, where a file says
  // nothing of them, first_ms for the first and then until it is quiet. Returns how many.
  int log_events(const char* step, End& e, int first_ms = 40);
  // What came on a side behind its last log_events(). Says nothing where nothing did.
  void log_late_events();
  // Whether the CQ has an event: 150 ms, if none is awaited.
  bool log_cq_event(const char* step, End& e, const CqInfo& cq);
  // What the file says of this step and subject: line by line, as they are asked for.
  const char* awaited(const char* step, const std::string& subject);
  int modify(const char* step, End& e, int state);
  // e's whole buffer is pattern(seed) except for the ranges.
  void bytes(const char* step, End& e, uint64_t seed, std::vector<Range> ranges);
  void fail() { log_.bad(); } // for a line that says BAD by say()
  std::string describe(const Wc& w, const End& e) const;

  const std::string name;
  const Options& options;
  Side& a;
  Side& b;
  std::function<Side()> new_peer; // one more agent process on b's host, device open

private:
  // A line, and on stderr, if another one was awaited.
  void saw(const char* step, const std::string& subject, const std::string& what,
           const char* awaited);

  Log& log_;
  std::map<std::string, size_t> asked_; // of awaited(): how often
  std::map<Side*, const char*> looked_; // sides whose events were logged, and their names
};

struct Test {
  std::string name; // family.what
  std::function<void(Case&)> run;
};

// Every family adds its cases to the table.
void add_data_cases(std::vector<Test>& t);
void add_atomic_cases(std::vector<Test>& t);
void add_order_cases(std::vector<Test>& t);
void add_remote_error_cases(std::vector<Test>& t);
void add_local_error_cases(std::vector<Test>& t);
void add_state_cases(std::vector<Test>& t);
void add_post_cases(std::vector<Test>& t);
void add_region_cases(std::vector<Test>& t);
void add_cq_cases(std::vector<Test>& t);
void add_srq_cases(std::vector<Test>& t);
void add_peer_cases(std::vector<Test>& t);

} // namespace verify
