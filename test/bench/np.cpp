// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An ordinary verbs program that READs its own memory over a queue pair: what `np` has a virtual
// host measure, stock and under backend np by turns. Times are in nanoseconds of the host's clock.
//
//   bench_np read COUNT         prints "latency NS": the median of COUNT READs of 4 KiB, one at a
//   time
//                               and "rate NS": of one of COUNT READs of 64 KiB, 16 outstanding
//   bench_np miss COUNT         prints "resident NS", "dropped NS", "swapped NS": medians of READs
//   of 4 KiB whose page
//                               is there, has been given back to the kernel, has been taken to swap
//   bench_np register COUNT     prints "register GIB NS" for each size: the median of COUNT
//   registrations
//
// `read` and `miss` stop before and after what is timed: they print "stopped" and go on at a line
// on stdin, so that the counters of the time between can be read.
#include "ends.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using bench::must;

constexpr size_t page = 4096;
constexpr size_t large = 64 << 10;
constexpr uint32_t outstanding = 16;
constexpr size_t table = 32 << 20; // bytes that are read
constexpr unsigned between =
    16; // READs of pages that are there, for each one of a page that is not

double nanoseconds(Clock::duration took) {
  return std::chrono::duration<double, std::nano>(took).count();
}

double median(std::vector<double>& values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

// Anonymous memory whose pages all differ.
struct Mapped {
  explicit Mapped(size_t bytes_)
      : bytes(bytes_), data(static_cast<unsigned char*>(
                           mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    must(data != MAP_FAILED, "mmap");
    // What takes one page of a huge one away takes all of it away for a moment.
    must(madvise(data, bytes, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
  }
  ~Mapped() { munmap(data, bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  size_t bytes;
  unsigned char* data;
};

void fill(unsigned char* at, size_t number) {
  memset(at, static_cast<int>(number % 251 + 1), page);
  memcpy(at, &number, sizeof number);
}

class Reader {
public:
  Reader()
      : table_(table), local_(device_, 2 * outstanding, size_t{outstanding} * large),
        remote_(device_, 1) {
    for (size_t i = 0; i < table / page; ++i)
      fill(table_.data + i * page, i);
    region_ = ibv_reg_mr(device_.pd, table_.data, table, bench::rights);
    must(region_ != nullptr, "ibv_reg_mr");
    local_.connect(device_, remote_.qp->qp_num);
    remote_.connect(device_, local_.qp->qp_num);
  }
  ~Reader() { ibv_dereg_mr(region_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  unsigned char* at(size_t number) { return table_.data + number * page; }

  // READs of `bytes` from page `number` on, to place `slot`.
  void post(size_t number, size_t bytes, uint32_t slot) {
    char* const to = local_.memory.data() + slot * large;
    ibv_sge element{reinterpret_cast<uintptr_t>(to), static_cast<uint32_t>(bytes), local_.mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = slot << 16 | number;
    wr.sg_list = &element;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<uintptr_t>(at(number)), region_->rkey};
    must(ibv_post_send(local_.qp, &wr, &bad) == 0, "ibv_post_send");
  }
  // Where the first byte of the READ that is done now came to.
  const char* wait() {
    ibv_wc wc{};
    int n = 0;
    while ((n = ibv_poll_cq(local_.cq, 1, &wc)) == 0)
      ;
    must(n == 1 && wc.status == IBV_WC_SUCCESS, "a READ");
    return local_.memory.data() + (wc.wr_id >> 16) * large;
  }
  // Nanoseconds of one page's; its data are compared after the clock.
  double one(size_t number, bool zero = false) {
    const auto begun = Clock::now();
    post(number, page, 0);
    const char* const came = wait();
    const double took = nanoseconds(Clock::now() - begun);
    unsigned char expected[page] = {};
    if (!zero)
      fill(expected, number);
    must(memcmp(came, expected, page) == 0, "the comparison of what a READ brought");
    return took;
  }
  // Until all goes the way it will go: the library asks for a view at most every 5 ms, and the
  // owner builds it meanwhile.
  void warm_up() {
    for (int i = 0; i < 64; ++i) {
      one(static_cast<size_t>(i) * (table / page / 64));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

private:
  bench::Device device_;
  Mapped table_;
  bench::End local_, remote_;
  ibv_mr* region_ = nullptr;
};

// A view that nobody uses is given back, so it is used meanwhile.
void stop(Reader& reader) {
  puts("stopped");
  fflush(stdout);
  pollfd input{STDIN_FILENO, POLLIN, 0};
  for (size_t i = 0; poll(&input, 1, 5) == 0; ++i)
    reader.one(i % (table / page));
  char line[8];
  must(fgets(line, sizeof line, stdin) != nullptr, "a line to go on");
}

void read(unsigned count) {
  Reader reader;
  reader.warm_up();
  stop(reader);
  std::vector<double> each;
  for (unsigned i = 0; i < count; ++i)
    each.push_back(reader.one(i * 7 % (table / page)));
  constexpr size_t pages = large / page, blocks = table / large;
  const auto begun = Clock::now();
  for (unsigned i = 0; i < count + outstanding; ++i) {
    if (i >= outstanding)
      reader.wait();
    if (i < count)
      reader.post(i % blocks * pages, large, i % outstanding);
  }
  const double rate = nanoseconds(Clock::now() - begun) / count;
  stop(reader);
  printf("latency %.0f\nrate %.0f\n", median(each), rate);
}

// Has the page taken to swap. It may be busy for a moment, so what says whether it has gone is the
// kernel's map of pages (bit 63 of an entry: present). mincore(2) would count a page that waits to
// be written there.
void page_out(unsigned char* at) {
  static const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  for (int tries = 0; tries < 1000; ++tries) {
    must(madvise(at, page, MADV_PAGEOUT) == 0, "MADV_PAGEOUT");
    uint64_t entry = 0;
    const auto offset = static_cast<off_t>(reinterpret_cast<uintptr_t>(at) / page * sizeof entry);
    must(pread(map, &entry, sizeof entry, offset) == sizeof entry, "to read /proc/self/pagemap");
    if (entry >> 63 == 0)
      return;
  }
  must(false, "to take a page to swap");
}

void miss(unsigned count) {
  Reader reader;
  reader.warm_up();
  stop(reader);
  std::vector<double> resident, dropped, swapped;
  size_t number = 0;
  const auto next = [&] { return number = (number + 97) % (table / page); };
  for (unsigned i = 0; i < count; ++i) {
    for (unsigned k = 0; k < between; ++k)
      resident.push_back(reader.one(next()));
    page_out(reader.at(next()));
    swapped.push_back(reader.one(number));
    for (unsigned k = 0; k < between; ++k)
      resident.push_back(reader.one(next()));
    must(madvise(reader.at(next()), page, MADV_DONTNEED) == 0, "MADV_DONTNEED");
    dropped.push_back(reader.one(number, true));
    fill(reader.at(number), number);
  }
  stop(reader);
  printf("resident %.0f\ndropped %.0f\nswapped %.0f\n", median(resident), median(dropped),
         median(swapped));
}

void register_each(unsigned count) {
  bench::Device device;
  for (const size_t gib : {1, 4, 16, 64}) {
    const Mapped memory(gib << 30);
    std::vector<double> each;
    for (unsigned i = 0; i <= count; ++i) {
      const auto begun = Clock::now();
      ibv_mr* const region = ibv_reg_mr(device.pd, memory.data, memory.bytes, bench::rights);
      const double took = nanoseconds(Clock::now() - begun);
      must(region != nullptr, "ibv_reg_mr");
      ibv_dereg_mr(region);
      if (i != 0)
        each.push_back(took);
    }
    printf("register %zu %.0f\n", gib, median(each));
  }
}

} // namespace

int main(int argc, char** argv) {
  const long count = argc == 3 ? strtol(argv[2], nullptr, 10) : 0;
  must(count > 0 && count <= 1'000'000, "bench_np read|miss|register COUNT");
  const auto n = static_cast<unsigned>(count);
  if (strcmp(argv[1], "read") == 0)
    read(n);
  else if (strcmp(argv[1], "miss") == 0)
    miss(n);
  else
    register_each(n);
  return 0;
}
