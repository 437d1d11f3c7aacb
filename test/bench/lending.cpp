// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program of two processes, one of which keeps a table that the other reads or
// writes, some parts of it far more often than others.
//
//   bench_lending one|two|best read|write OUTSTANDING COUNT TABLE HOT scattered|clustered SKEW
//   bench_lending unmap COUNT idle|busy
//   bench_lending hot read|write|atomic|send BYTES OUTSTANDING COUNT
//   bench_lending dereg COUNT
//
// TABLE and HOT are bytes, of slots of 4 KiB. SKEW: how many of a hundred requests are for the
// first HOT bytes' slots, evenly, the others for all the rest; or "zipf", for all slots by Zipf's
// law with 0.99, the first being named most. `scattered`: which slots are hot is a matter of
// chance; else they lie side by side.
//
// `one`: one queue pair, one table. `two`: the hot slots are a region of their own, reached by a
// queue pair of their own, as somebody would write it who knows beforehand what will be hot.
// Both read the whole table twice before, run COUNT requests unmeasured, and print nanoseconds per
// request of the COUNT that follow.
// `best`: nothing is run; the share of all 2 COUNT requests whose 64 KiB a cache of HOT bytes would
// have if it knew the future, by Belady's rule, and need not take in what is asked for.
//
// `unmap`: parts of the table are given back to the kernel COUNT times, each after the peer has
// read it often; prints the median and the 99th percentile of nanoseconds that takes, and the
// median for a part that nobody has read. `busy`: the peer goes on reading meanwhile.
//
// `hot`: the same BYTES of the peer's again and again; of a send the peer has as many receives
// posted. Half of COUNT is not measured. Prints nanoseconds per request.
// `dereg`: 256 parts that the peer has read often end with their region, COUNT times; prints the
// median and the longest time of ibv_dereg_mr() in nanoseconds.
#include "ends.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace {

using bench::Device;
using bench::End;
using bench::exchange;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr uint32_t depth = 128;
constexpr uint64_t slot_bytes = 4096;
constexpr uint64_t part_bytes = 64 << 10;

struct Wanted {
  bool two = false;
  ibv_wr_opcode opcode = IBV_WR_RDMA_READ;
  uint64_t outstanding = 1;
  uint64_t count = 0;
  uint64_t table = 0;
  uint64_t hot = 0;
  bool scattered = false;
  const char* skew = "zipf";
  uint64_t slots() const { return table / slot_bytes; }
};

struct Told {
  uint32_t qpn[2];
  uint32_t rkey[2]; // of the table, of its hot part
  uint64_t address[2];
};

// Which slots are named, the hottest being 0: `count` of them, the same each time.
std::vector<uint32_t> trace(const Wanted& wanted, uint64_t count) {
  std::mt19937_64 random(1);
  const uint64_t slots = wanted.slots();
  std::vector<uint32_t> named(count);
  if (strcmp(wanted.skew, "zipf") != 0) {
    const auto percent = strtoull(wanted.skew, nullptr, 0);
    const uint64_t hot = wanted.hot / slot_bytes;
    for (uint32_t& slot : named)
      slot = static_cast<uint32_t>(random() % 100 < percent ? random() % hot
                                                            : hot + (random() % (slots - hot)));
    return named;
  }
  std::vector<double> sums(slots);
  double sum = 0;
  for (uint64_t i = 0; i < slots; ++i)
    sums[i] = sum += std::pow(static_cast<double>(i + 1), -0.99);
  std::uniform_real_distribution<double> uniform(0, sum);
  for (uint32_t& slot : named)
    slot = static_cast<uint32_t>(std::ranges::lower_bound(sums, uniform(random)) - sums.begin());
  return named;
}

// Where a slot lies. In `two` the hot ones are another region's, side by side as here.
std::vector<uint32_t> places(const Wanted& wanted) {
  std::vector<uint32_t> at(wanted.slots());
  std::iota(at.begin(), at.end(), 0);
  std::mt19937_64 random(2);
  if (wanted.scattered)
    std::ranges::shuffle(at, random);
  return at;
}

double best(const Wanted& wanted) {
  const auto at = places(wanted);
  auto parts = trace(wanted, 2 * wanted.count);
  for (uint32_t& part : parts)
    part = static_cast<uint32_t>(at[part] * slot_bytes / part_bytes);
  const size_t room = wanted.hot / part_bytes;
  std::vector<size_t> next(parts.size());
  std::unordered_map<uint32_t, size_t> last;
  for (size_t i = parts.size(); i-- != 0;) {
    const auto seen = last.find(parts[i]);
    next[i] = seen == last.end() ? SIZE_MAX - parts[i] : seen->second; // each a different one
    last[parts[i]] = i;
  }
  std::set<size_t> kept; // by when they are named next
  uint64_t hits = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool hit = kept.erase(i) != 0;
    hits += hit ? 1 : 0;
    if (kept.size() < room) {
      kept.insert(next[i]);
    } else if (const auto latest = std::prev(kept.end()); *latest > next[i]) {
      kept.erase(latest);
      kept.insert(next[i]);
    }
  }
  return static_cast<double>(hits) / static_cast<double>(parts.size());
}

struct Table {
  char* memory;
  ibv_mr* mr;
  Table(Device& device, uint64_t bytes) {
    void* const at =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at != MAP_FAILED && madvise(at, bytes, MADV_NOHUGEPAGE) == 0, "mmap");
    memory = static_cast<char*>(at);
    memset(memory, 1, bytes);
    reg(device, bytes);
  }
  void reg(Device& device, uint64_t bytes) {
    mr = ibv_reg_mr(device.pd, memory, bytes, bench::rights_and_atomics);
    must(mr != nullptr, "ibv_reg_mr");
  }
  uint64_t address() const { return reinterpret_cast<uintptr_t>(memory); }
};

// The asking end: two queue pairs, of which `one` uses the first.
struct Asker {
  Asker(const Wanted& w, Device& device)
      : wanted(w), ends{End(device, depth), End(device, depth)} {}
  const Wanted& wanted;
  End ends[2];
  Told peer{};
  uint64_t under_way = 0;

  void post(unsigned which, uint64_t offset) {
    End& end = ends[which];
    ibv_sge sge{reinterpret_cast<uintptr_t>(end.memory.data()), slot_bytes, end.mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = wanted.opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {peer.address[which] + offset, peer.rkey[which]};
    must(ibv_post_send(end.qp, &wr, &bad) == 0, "ibv_post_send");
    ++under_way;
  }
  void poll_for(uint64_t most) {
    ibv_wc wc[16];
    while (under_way > most)
      for (End& end : ends) {
        const int n = ibv_poll_cq(end.cq, 16, wc);
        must(n >= 0, "ibv_poll_cq");
        for (int i = 0; i < n; ++i)
          must(wc[i].status == IBV_WC_SUCCESS, "a completion");
        under_way -= static_cast<uint64_t>(n);
      }
  }
  void read_all() {
    for (uint64_t at = 0; at < wanted.table; at += slot_bytes) {
      post(0, at);
      poll_for(wanted.outstanding - 1);
    }
    poll_for(0);
  }
  double run(const uint32_t* named, const std::vector<uint32_t>& at) {
    const uint64_t hot = wanted.two ? wanted.hot / slot_bytes : 0;
    const auto start = Clock::now();
    for (uint64_t i = 0; i < wanted.count; ++i) {
      if (named[i] < hot)
        post(1, named[i] * slot_bytes);
      else
        post(0, at[named[i]] * slot_bytes);
      poll_for(wanted.outstanding - 1);
    }
    poll_for(0);
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
           static_cast<double>(wanted.count);
  }
};

int ask(Asker& asker, int socket) {
  const Wanted& wanted = asker.wanted;
  const auto at = places(wanted);
  const auto named = trace(wanted, 2 * wanted.count);
  asker.read_all();
  asker.read_all();
  asker.run(named.data(), at);
  printf("%.1f\n", asker.run(named.data() + wanted.count, at));
  exchange(socket, 'e');
  return 0;
}

// What the one who unmaps says to the one who reads.
struct Turn {
  uint64_t offset;
  bool over;
};

void read_by_turns(Asker& asker, int socket, bool busy) {
  for (;;) {
    Turn turn{};
    must(read(socket, &turn, sizeof turn) == sizeof turn, "the other process");
    if (turn.over)
      return;
    for (int i = 0; i < 64; ++i) {
      asker.post(0, turn.offset);
      asker.poll_for(0);
    }
    for (int i = 0; busy && i < 16; ++i)
      asker.post(0, turn.offset);
    must(write(socket, &turn, sizeof turn) == sizeof turn, "the other process");
    asker.poll_for(0);
  }
}

void unmap_by_turns(const Wanted& wanted, Table& table, int socket) {
  const auto given_back = [&](uint64_t offset) {
    const auto start = Clock::now();
    must(madvise(table.memory + offset, part_bytes, MADV_DONTNEED) == 0, "madvise");
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  };
  std::vector<double> read_often, unread;
  for (uint64_t i = 0; i < wanted.count; ++i) {
    const uint64_t half = wanted.table / 2;
    const uint64_t offset = (i * part_bytes) % half;
    Turn turn{offset, false};
    must(write(socket, &turn, sizeof turn) == sizeof turn &&
             read(socket, &turn, sizeof turn) == sizeof turn,
         "the other process");
    read_often.push_back(given_back(offset));
    unread.push_back(given_back(half + offset));
    memset(table.memory + offset, 2, part_bytes);
    memset(table.memory + half + offset, 2, part_bytes);
  }
  const Turn turn{0, true};
  must(write(socket, &turn, sizeof turn) == sizeof turn, "the other process");
  exchange(socket, 'e');
  std::ranges::sort(read_often);
  std::ranges::sort(unread);
  printf("%.0f %.0f %.0f\n", read_often[read_often.size() / 2],
         read_often[read_often.size() * 99 / 100], unread[unread.size() / 2]);
}

// One end of a queue pair whose peer's memory is all hot.
struct HotEnd {
  Device device;
  End end;
  Table table;
  Told peer{};
  HotEnd(uint64_t bytes, int socket)
      : end(device, depth, std::max<uint64_t>(bytes, 64)),
        table(device, std::max<uint64_t>(bytes, slot_bytes)) {
    const Told mine{{end.qp->qp_num, 0}, {table.mr->rkey, 0}, {table.address(), 0}};
    peer = exchange(socket, mine);
    end.connect(device, peer.qpn[0], nullptr, 14, bench::rights_and_atomics);
    exchange(socket, 'c');
  }
};

ibv_wr_opcode opcode_of(const char* word) {
  return strcmp(word, "read") == 0     ? IBV_WR_RDMA_READ
         : strcmp(word, "atomic") == 0 ? IBV_WR_ATOMIC_FETCH_AND_ADD
         : strcmp(word, "send") == 0   ? IBV_WR_SEND
                                       : IBV_WR_RDMA_WRITE;
}

// `count` receives, of which never fewer than the peer may have under way are posted.
void receive_all(HotEnd& me, uint64_t bytes, uint64_t count, int socket) {
  uint64_t posted = 0, taken = 0;
  const auto post = [&] {
    ibv_sge sge{me.table.address(), static_cast<uint32_t>(bytes), me.table.mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(ibv_post_recv(me.end.qp, &wr, &bad) == 0, "ibv_post_recv");
    ++posted;
  };
  while (posted < std::min<uint64_t>(depth, count))
    post();
  exchange(socket, 'r');
  ibv_wc wc[16];
  while (taken < count) {
    const int n = ibv_poll_cq(me.end.cq, 16, wc);
    must(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; ++i) {
      must(wc[i].status == IBV_WC_SUCCESS, "a receive");
      ++taken;
      if (posted < count)
        post();
    }
  }
}

double ask_hot(HotEnd& me, ibv_wr_opcode opcode, uint64_t bytes, uint64_t outstanding,
               uint64_t count) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(me.end.memory.data()), static_cast<uint32_t>(bytes),
              me.end.mr->lkey};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    wr.wr.atomic = {me.peer.address[0], 1, 0, me.peer.rkey[0]};
  else if (opcode != IBV_WR_SEND)
    wr.wr.rdma = {me.peer.address[0], me.peer.rkey[0]};
  uint64_t posted = 0, done = 0;
  auto start = Clock::now();
  ibv_wc wc[16];
  while (done < count) {
    for (; posted < count && posted - done < outstanding; ++posted) {
      if (posted == count / 2)
        start = Clock::now();
      must(ibv_post_send(me.end.qp, &wr, &bad) == 0, "ibv_post_send");
    }
    const int n = ibv_poll_cq(me.end.cq, 16, wc);
    must(n >= 0, "ibv_poll_cq");
    for (int i = 0; i < n; ++i)
      must(wc[i].status == IBV_WC_SUCCESS, "a completion");
    done += static_cast<uint64_t>(n);
  }
  const uint64_t measured = count - (count / 2);
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() /
         static_cast<double>(measured);
}

int hot(const char* word, uint64_t bytes, uint64_t outstanding, uint64_t count) {
  must(bytes >= 8 && outstanding >= 1 && outstanding < depth && count >= 2, "the command line");
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const ibv_wr_opcode opcode = opcode_of(word);
  const pid_t child = fork();
  const int socket = sockets[child == 0 ? 1 : 0];
  HotEnd me(bytes, socket);
  if (child == 0) {
    if (opcode == IBV_WR_SEND)
      receive_all(me, bytes, count, socket);
    return exchange(socket, 'e') == 'e' ? 0 : 1;
  }
  if (opcode == IBV_WR_SEND)
    exchange(socket, 'r');
  printf("%.1f\n", ask_hot(me, opcode, bytes, outstanding, count));
  exchange(socket, 'e');
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the other process");
  return 0;
}

int dereg(uint64_t count) {
  constexpr uint64_t parts = 256;
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const int socket = sockets[child == 0 ? 1 : 0];
  HotEnd me(parts * part_bytes, socket);
  std::vector<double> took;
  for (uint64_t i = 0; i < count; ++i) {
    me.peer = exchange(
        socket, Told{{me.end.qp->qp_num, 0}, {me.table.mr->rkey, 0}, {me.table.address(), 0}});
    const uint64_t first = me.peer.address[0];
    for (uint64_t at = 0; child != 0 && at < parts * part_bytes * 8; at += part_bytes) {
      me.peer.address[0] = first + (at % (parts * part_bytes));
      ask_hot(me, IBV_WR_RDMA_READ, 8, 1, 2);
    }
    exchange(socket, 'r');
    const auto start = Clock::now();
    must(ibv_dereg_mr(me.table.mr) == 0, "ibv_dereg_mr");
    took.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count());
    me.table.reg(me.device, parts * part_bytes);
  }
  exchange(socket, 'e');
  if (child != 0) { // whose own nobody reads
    int status = 0;
    must(waitpid(child, &status, 0) == child && status == 0, "the other process");
    return 0;
  }
  std::ranges::sort(took);
  printf("%.0f %.0f\n", took[took.size() / 2], took.back());
  fflush(stdout);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 6 && strcmp(argv[1], "hot") == 0)
    return hot(argv[2], strtoull(argv[3], nullptr, 0), strtoull(argv[4], nullptr, 0),
               strtoull(argv[5], nullptr, 0));
  if (argc == 3 && strcmp(argv[1], "dereg") == 0)
    return dereg(strtoull(argv[2], nullptr, 0));
  Wanted wanted;
  const bool unmap = argc == 4 && strcmp(argv[1], "unmap") == 0;
  if (argc != 9 && !unmap) {
    fputs("usage: bench_lending one|two|best read|write OUTSTANDING COUNT TABLE HOT "
          "scattered|clustered SKEW\n"
          "       bench_lending unmap COUNT idle|busy\n"
          "       bench_lending hot read|write|atomic|send BYTES OUTSTANDING COUNT\n"
          "       bench_lending dereg COUNT\n",
          stderr);
    return 2;
  }
  if (unmap) {
    wanted.count = strtoull(argv[2], nullptr, 0);
    wanted.table = 256 << 20; // two halves, in stripes of their own
    wanted.outstanding = 16;
  } else {
    wanted.two = strcmp(argv[1], "two") == 0;
    wanted.opcode = strcmp(argv[2], "read") == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    wanted.outstanding = strtoull(argv[3], nullptr, 0);
    wanted.count = strtoull(argv[4], nullptr, 0);
    wanted.table = strtoull(argv[5], nullptr, 0);
    wanted.hot = strtoull(argv[6], nullptr, 0);
    wanted.scattered = strcmp(argv[7], "scattered") == 0;
    wanted.skew = argv[8];
    must(wanted.outstanding >= 1 && wanted.outstanding <= depth && wanted.hot < wanted.table,
         "the command line");
    if (strcmp(argv[1], "best") == 0)
      return printf("%.4f\n", best(wanted)) > 0 ? 0 : 1;
  }
  int sockets[2];
  must(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "socketpair");
  const pid_t child = fork();
  const bool owner = child == 0;
  const int socket = sockets[owner ? 1 : 0];
  close(sockets[owner ? 0 : 1]);
  Device device;
  Asker asker(wanted, device);
  Told mine{{asker.ends[0].qp->qp_num, asker.ends[1].qp->qp_num}, {}, {}};
  std::vector<Table> tables;
  for (const uint64_t bytes : {wanted.table, wanted.hot})
    if (owner && bytes != 0) {
      const size_t i = tables.size();
      tables.emplace_back(device, bytes);
      mine.rkey[i] = tables[i].mr->rkey;
      mine.address[i] = tables[i].address();
    }
  asker.peer = exchange(socket, mine);
  for (int i = 0; i < 2; ++i)
    asker.ends[i].connect(device, asker.peer.qpn[i]);
  exchange(socket, 'c');
  if (unmap && owner) {
    unmap_by_turns(wanted, tables[0], socket);
    fflush(stdout);
    return 0;
  }
  if (unmap) {
    read_by_turns(asker, socket, strcmp(argv[3], "busy") == 0);
    exchange(socket, 'e');
  } else if (owner) {
    return exchange(socket, 'e') == 'e' ? 0 : 1;
  } else {
    ask(asker, socket);
  }
  int status = 0;
  must(waitpid(child, &status, 0) == child && status == 0, "the other process");
  return 0; // objects go with the process
}
