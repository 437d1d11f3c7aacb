// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// process CASE: a program that does with its own process what programs may, makes requests, and
// prints what it found in a line, which is the same with adverb and without. See README.md.
#include "process.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

// ---- other code's functions in the context ----

constexpr unsigned wrapped_requests = 5;

struct Wrapped {
  ibv_context_ops before{};
  unsigned posts = 0, completions = 0;
} wrapped;

int count_posts(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  ++wrapped.posts;
  return wrapped.before.post_send(qp, wr, bad);
}

int count_completions(ibv_cq* cq, int entries, ibv_wc* wc) {
  const int n = wrapped.before.poll_cq(cq, entries, wc);
  wrapped.completions += n > 0 ? static_cast<unsigned>(n) : 0;
  return n;
}

void wrap(ibv_context* context) {
  wrapped.before = context->ops;
  context->ops.post_send = count_posts;
  context->ops.poll_cq = count_completions;
}

void pointers(bool before_the_first_object) {
  const Device device;
  if (before_the_first_object)
    wrap(device.context);
  const auto ends = std::make_unique<Ends>(device.context, Shape{});
  if (!before_the_first_object)
    wrap(device.context);
  {
    Ends others(device.context, {}); // more objects change nothing
    requests(*ends, wrapped_requests);
  }
  printf("%u posts and %u completions seen\n", wrapped.posts, wrapped.completions);
}

// A pointer that was put in stays until the context is gone.
void pointers_stay() {
  const Device device;
  wrap(device.context);
  for (int i = 0; i < 2; ++i) {
    Ends ends(device.context, {});
    requests(ends, 1);
  }
  printf("the wrapper %s\n", device.context->ops.post_send == count_posts ? "stands" : "is gone");
}

// ---- a C library whose functions others have patched ----

unsigned patched_calls = 0;

void* patched_mremap(void* old, size_t old_bytes, size_t bytes, int flags, void* to) {
  ++patched_calls;
  return reinterpret_cast<void*>(syscall(SYS_mremap, old, old_bytes, bytes, flags, to));
}

// As the memory hooks of communication libraries do it: a jump over the function's first bytes.
void patch() {
#if defined(__x86_64__)
  void* const library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  auto* const code = static_cast<uint8_t*>(dlsym(library, "mremap"));
  must(code != nullptr, "libc's mremap");
  const uintptr_t page = reinterpret_cast<uintptr_t>(code) & ~uintptr_t{4095};
  must(mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0,
       "mprotect");
  const auto target = reinterpret_cast<uintptr_t>(&patched_mremap);
  std::array<uint8_t, 13> jump = {0x49, 0xBB, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xFF, 0xE3};
  memcpy(jump.data() + 2, &target, sizeof target); // movabs r11; jmp r11
  memcpy(code, jump.data(), jump.size());
#endif
}

void mremap_patched() {
  patch();
  requests(2);
  const unsigned before = patched_calls;
  void* at = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (const size_t bytes : {16384, 4096, 65536}) {
    at = mremap(at, 4096, bytes, MREMAP_MAYMOVE);
    must(at != MAP_FAILED, "mremap");
  }
  printf("%u of 3 calls of mremap heard\n", patched_calls - before);
}

// ---- threads that are bound, of a real-time class, nice ----

std::vector<pid_t> other_threads() {
  std::vector<pid_t> found;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks))
    if (const pid_t id = atoi(entry->d_name); id > 0 && id != getpid())
      found.push_back(id);
  closedir(tasks);
  return found;
}

void bound_threads() {
  cpu_set_t all;
  cpu_set_t one;
  must(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity");
  CPU_ZERO(&one);
  for (unsigned cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &all))
      CPU_SET(cpu, &one);
  must(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
  // Without the right to it the poller is of the usual class, and what is looked at is the binding.
  const sched_param ten{10};
  const bool real_time = sched_setscheduler(0, SCHED_FIFO, &ten) == 0;
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 10);
  unsigned bound = 0;
  unsigned of_class = 0;
  for (const pid_t thread : other_threads()) {
    cpu_set_t set;
    bound += sched_getaffinity(thread, sizeof set, &set) == 0 && !CPU_EQUAL(&set, &all);
    of_class += sched_getscheduler(thread) != SCHED_OTHER;
  }
  fprintf(stderr, "the poller is %s\n", real_time ? "of SCHED_FIFO" : "of the usual class");
  printf("10 requests of a bound poller; %u other threads bound, %u of another class\n", bound,
         of_class);
}

// ---- children ----

void reaper() {
  must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
  const Device device;
  Ends ends(device.context, {});
  requests(ends, 5);
  errno = 0;
  const pid_t child = waitpid(-1, nullptr, WNOHANG);
  printf("a reaper has %s\n", child < 0 && errno == ECHILD ? "no child" : "a child");
}

// ---- threads that are cancelled while they post ----

constexpr uint64_t last_request = 77;

void post_one(Ends& ends, uint64_t number, ibv_wr_opcode opcode) {
  ibv_sge sge{reinterpret_cast<uintptr_t>(ends.at_a.data), 64, ends.mr_a->lkey};
  ibv_send_wr wr{};
  wr.wr_id = number;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {reinterpret_cast<uintptr_t>(ends.at_b.data), ends.outer_b->rkey};
  ibv_send_wr* bad = nullptr;
  errno = ibv_post_send(ends.pairs[0].a, &wr, &bad);
  must(errno == 0, "ibv_post_send");
}

// What completes until the request of that number does; a minute means that it never does.
void drain(Ends& ends, uint64_t number) {
  for (;;)
    for (const ibv_wc& completion : ends.of_a.take(true))
      if (completion.wr_id == number)
        return;
}

struct Poster {
  Ends* ends;
  std::atomic<unsigned> posted{0};
};

void* post_for_ever(void* given) {
  auto* const poster = static_cast<Poster*>(given);
  for (uint64_t i = 0;; ++i) {
    post_one(*poster->ends, 0, i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
    ++poster->posted;
    int before = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before); // the posts alone are of interest
    poster->ends->of_a.await(1);
    pthread_setcancelstate(before, &before);
    pthread_testcancel();
  }
}

void cancelled() {
  constexpr unsigned rounds = 60;
  const Device device;
  Ends ends(device.context, {});
  unsigned ended = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    Poster poster{.ends = &ends};
    pthread_t thread{};
    must(pthread_create(&thread, nullptr, post_for_ever, &poster) == 0, "pthread_create");
    while (poster.posted < 1 + round % 7)
      sched_yield();
    pthread_cancel(thread);
    void* result = nullptr;
    ended += pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED;
    // Whatever it held is free: the next thread goes on with the same queue pair.
    post_one(ends, last_request, IBV_WR_RDMA_WRITE);
    drain(ends, last_request);
  }
  requests(ends, 5);
  printf("%u of %u threads ended by pthread_cancel, and requests go on\n", ended, rounds);
}

// ---- huge pages ----

constexpr size_t huge_bytes = 16 << 20;

uint8_t* huge_memory() {
  void* const at = mmap(nullptr, huge_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  must(at != MAP_FAILED, "huge pages (vm.nr_hugepages)");
  return static_cast<uint8_t*>(at);
}

// Of a region that is whole huge pages, requests use what lies in the middle of them.
void huge(bool forks) {
  if (forks)
    must((errno = ibv_fork_init()) == 0, "ibv_fork_init");
  const Device device;
  Ends ends(device.context, {});
  constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  uint8_t* const a = huge_memory();
  uint8_t* const b = huge_memory();
  ibv_mr* const of_a = ibv_reg_mr(ends.pd, a, huge_bytes, all);
  ibv_mr* const of_b = ibv_reg_mr(ends.pd, b, huge_bytes, all);
  must(of_a != nullptr && of_b != nullptr, "ibv_reg_mr");
  constexpr size_t from = (1 << 20) + 4096, to = (5 << 20) + 8192;
  unsigned right = 0;
  for (const uint32_t bytes : {64U, 4096U, 65536U, 307'200U, 1U << 20})
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND}) {
      std::fill_n(opcode == IBV_WR_RDMA_READ ? b + to : a + from, bytes,
                  static_cast<uint8_t>(++right));
      ibv_sge sge{reinterpret_cast<uintptr_t>(a + from), bytes, of_a->lkey};
      ibv_sge into{reinterpret_cast<uintptr_t>(b + to), bytes, of_b->lkey};
      ibv_recv_wr receive{};
      receive.sg_list = &into;
      receive.num_sge = 1;
      if (opcode == IBV_WR_SEND)
        must(ends.post_receives(0, &receive) == nullptr, "ibv_post_recv");
      ibv_send_wr wr{};
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.opcode = opcode;
      wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.rdma = {reinterpret_cast<uintptr_t>(b + to), of_b->rkey};
      ibv_send_wr* bad = nullptr;
      errno = ibv_post_send(ends.pairs[0].a, &wr, &bad);
      must(errno == 0, "ibv_post_send");
      ends.of_a.await(1);
      if (opcode == IBV_WR_SEND)
        ends.of_b.await(1);
      must(std::equal(a + from, a + from + bytes, b + to), "the bytes of a request");
    }
  must(ibv_dereg_mr(of_a) == 0 && ibv_dereg_mr(of_b) == 0, "ibv_dereg_mr");
  printf("%u requests from and to huge pages\n", right);
}

// ---- stacks ----

constexpr uint8_t paint = 0xA7;
constexpr size_t stack_bytes = 256 << 10;

// How much of a painted stack `run` and the thread round it have used.
size_t used_by(const std::function<void()>& run) {
  const Memory stack(stack_bytes);
  std::fill_n(stack.data, stack.bytes, paint);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack.data, stack.bytes);
  pthread_t thread{};
  const auto main = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  must(pthread_create(&thread, &attributes, main, const_cast<std::function<void()>*>(&run)) == 0,
       "pthread_create");
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  return static_cast<size_t>(stack.data + stack.bytes -
                             std::find_if(stack.data, stack.data + stack.bytes,
                                          [](uint8_t byte) { return byte != paint; }));
}

// Bytes for a script to compare: from opening the device to the last request, on one thread.
void stack() {
  const size_t idle = used_by([] {});
  printf("%zu\n", used_by([] { requests(50); }) - idle);
}

} // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> cases = {
      {"pointers_early", [] { pointers(true); }},
      {"pointers_late", [] { pointers(false); }},
      {"pointers_stay", pointers_stay},
      {"mremap", mremap_patched},
      {"threads", bound_threads},
      {"reaper", reaper},
      {"descriptors", [] { descriptors(false); }},
      {"descriptors_by_range", [] { descriptors(true); }},
      {"children", children},
      {"contexts", contexts},
      {"numbers", numbers},
      {"closed_first", closed_first},
      {"close_cancelled", close_cancelled},
      {"stderr", own_stderr},
      {"stack", stack},
      {"cancelled", cancelled},
      {"huge", [] { huge(false); }},
      {"huge_forks", [] { huge(true); }},
  };
  const auto chosen = cases.find(argc == 2 ? argv[1] : "");
  if (chosen == cases.end()) {
    fputs("usage: process CASE; the cases are", stderr);
    for (const auto& one : cases)
      fprintf(stderr, " %s", one.first.c_str());
    fputs("\n", stderr);
    return 2;
  }
  chosen->second();
  fflush(stdout);
  return 0;
}
