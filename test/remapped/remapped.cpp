// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that sends, receives, reads and writes by regions whose memory it
// changes in between: what is sent is what the addresses hold when it is posted, what is received
// is there to be read, and who reads or writes one-sided meets what they hold then.
//
//   remapped SECONDS [SEED [GATE]]
//   remapped --rounds N [--seed N]
//
// Two queue pairs of one process, connected to each other. Each round changes mappings of one side
// or both, as programs do, fills a block, sends it into another, and compares. Prints TAP. With
// GATE, a FIFO, it says when all is registered, and begins when somebody opens that for writing.
#include "../bench/ends.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <memory>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace {

using bench::Device;
using bench::End;
using bench::must;
using Clock = std::chrono::steady_clock;

constexpr size_t page = 4096;
constexpr size_t arena_bytes = 8 << 20;
constexpr size_t hot_bytes = 512 << 10;
constexpr size_t heap_bytes = 1 << 20; // above the threshold: a mapping of its own
constexpr int meeting = 4;             // requests under way
constexpr uint32_t least = 2048;       // bytes of a message, too many to be copied
constexpr uint32_t most = 256 << 10;

enum class Change : uint8_t {
  none,
  dontneed,
  free_later,
  over,
  unmapped,
  moved,
  forked,
  guarded,
  changes
};
constexpr std::array names{"none",   "MADV_DONTNEED", "MADV_FREE", "MAP_FIXED",
                           "munmap", "mremap",        "fork",      "mprotect"};
static_assert(names.size() == static_cast<size_t>(Change::changes));

char* map(void* at, size_t bytes) {
  void* p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED : 0), -1, 0);
  must(p != MAP_FAILED, "mmap");
  return static_cast<char*>(p);
}

// Where nothing is. Somebody else's mapping there would be lost: of a library with threads.
char* map_anew(void* at, size_t bytes) {
  void* p = mmap(at, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  must(p == at, "the same addresses, which another thread has taken");
  return static_cast<char*>(p);
}

// Memory registered once, for as long as the program runs.
struct Area {
  Area(Device& device, char* memory_, size_t bytes_) : memory(memory_), bytes(bytes_) {
    mr = ibv_reg_mr(device.pd, memory, bytes, bench::rights);
    must(mr != nullptr, "ibv_reg_mr");
  }
  char* memory;
  size_t bytes;
  ibv_mr* mr;
};

// The whole pages around [at, +length) come to be others, of zeroes or as they were.
void change(Change what, char* at, size_t length) {
  char* const from = at - (reinterpret_cast<uintptr_t>(at) % page);
  const size_t bytes = (static_cast<size_t>(at - from) + length + page - 1) / page * page;
  switch (what) {
  case Change::dontneed:
    must(madvise(from, bytes, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    break;
  case Change::free_later:
    must(madvise(from, bytes, MADV_FREE) == 0, "MADV_FREE");
    break;
  case Change::over:
    map(from, bytes);
    break;
  case Change::unmapped:
    must(munmap(from, bytes) == 0, "munmap");
    map_anew(from, bytes);
    break;
  case Change::moved: {
    char* const other = map(nullptr, bytes);
    // By the page: what has been mapped anew in places may be several mappings to the kernel.
    for (size_t n = 0; n < bytes; n += page)
      must(mremap(from + n, page, page, MREMAP_MAYMOVE | MREMAP_FIXED, other + n) == other + n,
           "mremap");
    map_anew(from, bytes);
    must(munmap(other, bytes) == 0, "munmap");
    break;
  }
  case Change::forked: { // pages are written after: this process has others, or the child has
    const pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0)
      _exit(0);
    memset(from, 0x5a, bytes);
    must(waitpid(child, nullptr, 0) == child, "waitpid");
    break;
  }
  case Change::guarded: // and had again with all rights, its pages being the same
    must(mprotect(from, bytes, PROT_READ) == 0 &&
             mprotect(from, bytes, PROT_READ | PROT_WRITE) == 0,
         "mprotect");
    break;
  case Change::none:
  case Change::changes:
    break;
  }
}

// Below this lie all mappings that change. What is unmapped for an instant to be mapped again shall
// not be taken meanwhile: whoever maps memory (a library's threads do) is given the highest place
// that has room, so when all are mapped there is one here.
class RoomAbove {
public:
  RoomAbove() : at_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    must(at_ != MAP_FAILED, "mmap");
  }
  ~RoomAbove() { leave(); }
  RoomAbove(const RoomAbove&) = delete;
  RoomAbove& operator=(const RoomAbove&) = delete;
  void leave() {
    if (at_ != MAP_FAILED)
      must(munmap(std::exchange(at_, MAP_FAILED), bytes) == 0, "munmap");
  }

private:
  static constexpr size_t bytes = size_t{1} << 30;
  void* at_;
};

class Program {
public:
  // `rounds`: so many, however long they take; 0: for so many seconds.
  Program(double seconds, uint64_t rounds, uint64_t seed)
      : random_(seed),
        lasts_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))),
        wanted_(rounds) {
    from_.connect(device_, to_.qp->qp_num);
    to_.connect(device_, from_.qp->qp_num);
    room_.leave();
  }

  // The first difference, in words; empty: there was none.
  std::string run() {
    std::string why;
    const auto end = Clock::now() + lasts_;
    while (why.empty() && (wanted_ != 0 ? rounds_ < wanted_ : Clock::now() < end)) {
      why = round();
      ++rounds_;
    }
    return rounds_ == 0 ? "no round was done" : why;
  }
  // A mapping that is registered, and sent from in its midst, can be made larger as any.
  std::string grow() {
    constexpr size_t bytes = 8 << 20;
    char* const all = map(nullptr, bytes);
    Area area(device_, all + (bytes / 2), most);
    if (std::string why = send(area, area.memory, sink_, sink_.memory, most, ""); !why.empty())
      return why;
    void* const larger = mremap(all, bytes, 4 * bytes, MREMAP_MAYMOVE);
    if (larger == MAP_FAILED)
      return std::string("mremap: ") + strerror(errno);
    must(munmap(larger, 4 * bytes) == 0, "munmap");
    must(ibv_dereg_mr(area.mr) == 0, "ibv_dereg_mr");
    return {};
  }
  // The same to another place.
  std::string move() {
    constexpr size_t bytes = 8 << 20;
    char* const all = map(nullptr, bytes);
    Area area(device_, all + (bytes / 2), most);
    if (std::string why = send(area, area.memory, sink_, sink_.memory, most, ""); !why.empty())
      return why;
    memset(all, 0x5a, bytes);
    char* const place = map(nullptr, bytes);
    void* const moved = mremap(all, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved == MAP_FAILED)
      return std::string("mremap to a place: ") + strerror(errno);
    must(moved == place && std::all_of(place, place + bytes, [](char c) { return c == 0x5a; }),
         "all of it");
    must(munmap(place, bytes) == 0, "munmap");
    must(ibv_dereg_mr(area.mr) == 0, "ibv_dereg_mr");
    return {};
  }
  void end() {
    for (const Area* area : {&source_, &sink_, &hot_})
      must(ibv_dereg_mr(area->mr) == 0, "ibv_dereg_mr");
    for (const End* end : {&from_, &to_}) {
      must(ibv_destroy_qp(end->qp) == 0, "ibv_destroy_qp");
      must(ibv_destroy_cq(end->cq) == 0, "ibv_destroy_cq");
      must(ibv_dereg_mr(end->mr) == 0, "ibv_dereg_mr");
    }
    must(ibv_dealloc_pd(device_.pd) == 0, "ibv_dealloc_pd");
    must(ibv_close_device(device_.context) == 0, "ibv_close_device");
  }
  uint64_t rounds() const { return rounds_; }
  uint64_t changed() const { return changed_; }

private:
  std::string round() {
    switch (below(16)) {
    case 0:
      return again_from_heap();
    case 1:
      return reach_heap();
    case 2:
      return reach_trimmed();
    case 3:
      return reach_stack();
    case 4:
    case 5:
    case 6:
    case 7:
      return again();
    default:
      return reach();
    }
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  Change any() {
    const auto what = static_cast<Change>(below(static_cast<uint32_t>(Change::changes)));
    changed_ += what != Change::none ? 1 : 0;
    return what;
  }
  // A few places, so that the same are met again and again.
  char* place(Area& area, uint32_t length) {
    return area.memory +
           std::min<size_t>(below(16) * (area.bytes / 16) + below(3) * 1000, area.bytes - length);
  }

  std::string again() {
    const uint32_t length = least + below(most - least);
    char* const out = place(source_, length);
    char* const in = place(sink_, length);
    const Change at_source = any();
    const Change at_sink = any();
    change(at_source, out, length);
    change(at_sink, in, length);
    return send(source_, out, sink_, in, length,
                std::string(names[static_cast<size_t>(at_source)]) + " where it is sent from, " +
                    names[static_cast<size_t>(at_sink)] + " where it goes");
  }

  // A block of the heap that is registered, used, freed, and had again at the same addresses.
  template <typename Use> std::string with_block(Use&& use) {
    char* block = static_cast<char*>(malloc(heap_bytes));
    must(block != nullptr, "malloc");
    Area heap(device_, block, heap_bytes);
    std::string why;
    for (int times = 0; why.empty() && times < 4; ++times) {
      why = use(heap);
      free(block);
      char* const next = static_cast<char*>(malloc(heap_bytes));
      must(next != nullptr, "malloc");
      ++changed_;
      if (std::exchange(block, next) != next)
        break;
    }
    must(ibv_dereg_mr(heap.mr) == 0, "ibv_dereg_mr");
    free(block);
    return why;
  }

  std::string again_from_heap() {
    return with_block([this](Area& heap) {
      const uint32_t length = least + below(most - least);
      std::string why =
          send(heap, heap.memory + below(heap_bytes - length), sink_, place(sink_, length), length,
               "freed and had again where it is sent from");
      return !why.empty() ? why
                          : send(source_, place(source_, length), heap,
                                 heap.memory + below(heap_bytes - length), length,
                                 "freed and had again where it goes");
    });
  }

  // Memory that the other end reads and writes again and again by itself, and its owner changes in
  // between; now and then while something is under way, which may find the one or the other.
  std::string reach() {
    constexpr uint32_t longest = 8 << 10;
    const uint32_t length = 1 + below(longest);
    char* const there = hot_.memory + (below(4) * size_t{64 << 10}) + below(3 * longest);
    Change what = any();
    char* const here = place(source_, length);
    const bool meets = below(2) == 0;
    if (meets) {
      if (what == Change::unmapped || what == Change::moved) // which leave a gap for some instants
        what = Change::over;
      for (int n = 0; n < meeting; ++n)
        post(IBV_WR_RDMA_READ, here, hot_, there, length);
    }
    const std::string changed = std::string(names[static_cast<size_t>(what)]) + " where it is";
    change(what, there, length);
    const auto value = static_cast<char>(1 + (random_() % 255));
    memset(there, value, length);
    for (int n = 0; meets && n < meeting; ++n)
      if (const ibv_wc_status status = await(from_.cq); status != IBV_WC_SUCCESS)
        return std::string(ibv_wc_status_str(status)) + " (READ meanwhile): " + changed;
    return look(hot_, there, length, value, changed);
  }

  // The other end reads what is there, and writes something else, by turns.
  std::string look(Area& hot, char* there, uint32_t length, char value,
                   const std::string& changed) {
    char* const here = place(source_, length);
    char expected = value;
    for (uint32_t n = 0, most = 2 + below(12); n < most; ++n) {
      const bool reading = n % 2 == 0;
      const auto opcode = reading ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
      memset(here, reading ? 0 : ++expected, length);
      post(opcode, here, hot, there, length);
      if (const ibv_wc_status status = await(from_.cq); status != IBV_WC_SUCCESS)
        return std::string(ibv_wc_status_str(status)) + ": " + changed;
      const char* const found = reading ? here : there;
      for (uint32_t at = 0; at < length; ++at)
        if (found[at] != expected)
          return "byte " + std::to_string(at) + " of " + std::to_string(length) + " is " +
                 std::to_string(found[at]) + ", not " + std::to_string(expected) +
                 (reading ? " (READ): " : " (WRITE): ") + changed;
    }
    return {};
  }

  // Fills a place of it, and looks.
  std::string look_anew(Area& hot, const std::string& changed) {
    const uint32_t length = 1 + below(8 << 10);
    char* const there = hot.memory + below(static_cast<uint32_t>(hot.bytes) - length);
    const auto value = static_cast<char>(1 + (random_() % 255));
    memset(there, value, length);
    return look(hot, there, length, value, changed);
  }

  // The same, which the other end reaches.
  std::string reach_heap() {
    return with_block([this](Area& heap) {
      std::string why;
      for (int looks = 0; why.empty() && looks < 4; ++looks)
        why = look_anew(heap, "freed and had again");
      return why;
    });
  }

  // Small blocks at the end of the heap, which is trimmed, and grows again to where it was.
  std::string reach_trimmed() {
    constexpr size_t blocks = 16;
    constexpr size_t bytes = 64 << 10;
    std::array<char*, blocks> all{};
    const auto take = [&] {
      for (char*& block : all)
        must((block = static_cast<char*>(malloc(bytes))) != nullptr, "malloc");
    };
    const auto give = [&] {
      for (char* block : all)
        free(block);
      malloc_trim(0);
    };
    take();
    const auto before = all;
    Area last(device_, all.back(), bytes);
    std::string why;
    for (int times = 0; why.empty() && times < 4 && all == before; ++times) {
      for (int looks = 0; why.empty() && looks < 4; ++looks)
        why = look_anew(last, "the heap trimmed, and grown again");
      give();
      take();
      ++changed_;
    }
    must(ibv_dereg_mr(last.mr) == 0, "ibv_dereg_mr");
    give();
    return why;
  }

  // The stacks of threads that follow each other.
  std::string reach_stack() {
    std::unique_ptr<Area> stack;
    std::string why;
    for (int times = 0; why.empty() && times < 4; ++times) {
      std::thread thread([&] {
        char here[256 << 10];
        memset(here, 1, sizeof here);
        if (!stack)
          stack = std::make_unique<Area>(device_, here, sizeof here);
        if (stack->memory == here)
          why = look_anew(*stack, "the stack of a thread before");
      });
      thread.join();
      ++changed_;
    }
    must(ibv_dereg_mr(stack->mr) == 0, "ibv_dereg_mr");
    return why;
  }

  void post(ibv_wr_opcode opcode, char* here, const Area& hot, char* there, uint32_t length) {
    ibv_sge local{reinterpret_cast<uintptr_t>(here), length, source_.mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &local;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<uintptr_t>(there), hot.mr->rkey};
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(from_.qp, &wr, &bad) == 0, "ibv_post_send");
  }

  std::string send(Area& source, char* out, Area& sink, char* in, uint32_t length,
                   const std::string& what) {
    const auto value = static_cast<char>(1 + (random_() % 255));
    memset(out, value, length);
    memset(in, 0, length);
    const bool written = below(2) == 0; // WRITE_WITH_IMM, which takes a receive, too
    ibv_sge to{reinterpret_cast<uintptr_t>(in), length, sink.mr->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &to;
    receive.num_sge = 1;
    ibv_recv_wr* bad_receive = nullptr;
    must(ibv_post_recv(to_.qp, &receive, &bad_receive) == 0, "ibv_post_recv");
    ibv_sge from{reinterpret_cast<uintptr_t>(out), length, source.mr->lkey};
    ibv_send_wr wr{};
    wr.sg_list = &from;
    wr.num_sge = 1;
    wr.opcode = written ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<uintptr_t>(in), sink.mr->rkey};
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(from_.qp, &wr, &bad) == 0, "ibv_post_send");
    for (ibv_cq* cq : {from_.cq, to_.cq})
      if (const ibv_wc_status status = await(cq); status != IBV_WC_SUCCESS)
        return std::string(ibv_wc_status_str(status)) + ": " + what;
    for (uint32_t at = 0; at < length; ++at)
      if (in[at] != value)
        return "byte " + std::to_string(at) + " of " + std::to_string(length) + " is " +
               std::to_string(in[at]) + ", not " + std::to_string(value) +
               (written ? " (WRITE): " : " (SEND): ") + what;
    return {};
  }

  static ibv_wc_status await(ibv_cq* cq) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    ibv_wc wc{};
    for (int n = 0; n == 0; n = ibv_poll_cq(cq, 1, &wc)) {
      must(n == 0, "ibv_poll_cq");
      must(Clock::now() < until, "a completion within 60 s");
      std::this_thread::yield(); // to whoever is to bring it: there may be a crowd of these
    }
    return wc.status;
  }

  std::mt19937_64 random_;
  const Clock::duration lasts_;
  const uint64_t wanted_;
  RoomAbove room_;
  Device device_;
  End from_{device_, 4};
  End to_{device_, 4};
  Area source_{device_, map(nullptr, arena_bytes), arena_bytes};
  Area sink_{device_, map(nullptr, arena_bytes), arena_bytes};
  Area hot_{device_, map(nullptr, hot_bytes), hot_bytes};
  uint64_t rounds_ = 0;
  uint64_t changed_ = 0;
};

// Until somebody opens the FIFO for writing.
void wait_at(const char* gate) {
  printf("# registered\n");
  fflush(stdout);
  const int fd = open(gate, O_RDONLY | O_CLOEXEC);
  must(fd >= 0, "the gate");
  close(fd);
}

} // namespace

int main(int argc, char** argv) {
  const option names[] = {{"rounds", required_argument, nullptr, 'r'},
                          {"seed", required_argument, nullptr, 's'},
                          {nullptr, 0, nullptr, 0}};
  const char* seed_word = nullptr;
  uint64_t rounds = 0;
  bool good = true;
  for (int c; (c = getopt_long(argc, argv, "", names, nullptr)) != -1;) {
    good = good && (c == 'r' || c == 's');
    if (c == 'r')
      rounds = strtoull(optarg, nullptr, 0);
    else
      seed_word = optarg;
  }
  const int left = argc - optind;
  char** const words = argv + optind;
  must(good && (rounds != 0 ? left == 0 : left >= 1 && left <= 3),
       "remapped SECONDS [SEED [GATE]] | remapped --rounds N [--seed N]");
  if (left >= 2)
    seed_word = words[1];
  mallopt(M_MMAP_THRESHOLD, 128 << 10); // fixed: a large block stays a mapping of its own
  const uint64_t seed =
      seed_word != nullptr ? strtoull(seed_word, nullptr, 0) : std::random_device{}();
  printf("# seed %llu\n", static_cast<unsigned long long>(seed));
  Program program(left >= 1 ? strtod(words[0], nullptr) : 0, rounds, seed);
  if (left == 3)
    wait_at(words[2]);
  const auto say = [](const char* promise, const std::string& why) {
    printf("%s - %s%s%s\n", why.empty() ? "ok" : "not ok", promise, why.empty() ? "" : ": ",
           why.c_str());
  };
  say("a mapping in whose midst is sent from grows as any", program.grow());
  say("and moves as any", program.move());
  const std::string why = program.run();
  printf("# %llu rounds, %llu changes of mappings\n",
         static_cast<unsigned long long>(program.rounds()),
         static_cast<unsigned long long>(program.changed()));
  say("what is sent and received is what the addresses hold", why);
  if (why.empty())
    program.end();
  return 0;
}
