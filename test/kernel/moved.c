// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Pages that go on living elsewhere: on another node, because the kernel finds that better, or at
// another address, by userfaultfd.
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define PAGES 512UL
#define LENGTH (PAGES * PAGE)

// Headers older than 6.8 do not know it.
#ifndef UFFDIO_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
struct uffdio_move {
  __u64 dst;
  __u64 src;
  __u64 len;
  __u64 mode;
  __s64 move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 0x05, struct uffdio_move)
#endif

static struct image image;

// A region whose lower half is resident and whose upper half waits for pages from there.
static int make_halves(char* start, size_t length) {
  size_t half = length / 2;
  int fd = userfaults(UFFD_FEATURE_MOVE);
  struct uffdio_register missing = {.range = {(uintptr_t)start + half, half},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
  expect(ioctl(fd, UFFDIO_REGISTER, &missing) == 0, "register: %s", strerror(errno));
  make_image(&image, SOFT, start, length);
  fill(start, half, 1);
  fault_in(image.adverb, image.region, start, half, true);
  return fd;
}

static void move_up(int fd, size_t from, size_t length) {
  uintptr_t source = (uintptr_t)image.start + from;
  struct uffdio_move move = {.dst = source + image.length / 2, .src = source, .len = length};
  // EAGAIN: somebody, the worker maybe, looked at a page at this moment.
  while (ioctl(fd, UFFDIO_MOVE, &move) != 0) {
    expect(errno == EAGAIN || errno == EBUSY, "move: %s", strerror(errno));
    if (move.move > 0) {
      move.dst += (__u64)move.move;
      move.src += (__u64)move.move;
      move.len -= (__u64)move.move;
    }
  }
}

// The page at `from` was moved up by half of the region, with the word it had.
static void follows_the_address(size_t from, uint64_t had) {
  size_t to = from + image.length / 2;
  uint64_t word;
  expect(reads_pattern(&image, from, &word), "the device reads %#llx of a page that has moved",
         (unsigned long long)word);
  device_store(&image, from, 0xbad);
  expect(*(uint64_t*)(image.start + to) == had, "the device follows the page, not the address");
  fault_in(image.adverb, image.region, image.start + to, PAGE, true);
  expect(device_word(&image, to) == had, "the device does not read what was moved in");
  device_store(&image, to, had + 1000);
  expect(*(uint64_t*)(image.start + to) == had + 1000, "the device's write got lost");
}

static void userfault_move(void) {
  int fd = make_halves(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  expect(device_word(&image, 5 * PAGE) == 6, "resident at first");
  move_up(fd, 5 * PAGE, PAGE);
  expect(!resident(&image, 0, 5 * PAGE) && !resident(&image, 1, 5 * PAGE),
         "the tables say it is there");
  expect(generation(&image, 1, 5 * PAGE) > before, "the generation stands still");
  expect(device_word(&image, 4 * PAGE) == 5 && device_word(&image, 6 * PAGE) == 7,
         "neighbours left");
  follows_the_address(5 * PAGE, 6);
}

static bool is_huge(const char* address) {
  char line[256];
  uintptr_t from, to;
  bool here = false;
  long huge = 0;
  FILE* file = fopen("/proc/self/smaps", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
      here = (uintptr_t)address >= from && (uintptr_t)address < to;
    else if (here)
      sscanf(line, "AnonHugePages: %ld", &huge);
  }
  if (file)
    fclose(file);
  return huge > 0;
}

// All 512 pages go by one exchange of page tables.
static void userfault_move_huge(void) {
  char* start = memory(6 * MIB);
  char* huge = (char*)(((uintptr_t)start + 2 * MIB - 1) & ~(2 * MIB - 1));
  madvise(huge, 4 * MIB, MADV_HUGEPAGE);
  int fd = make_halves(huge, 4 * MIB);
  if (!is_huge(huge))
    skip("no huge page to be had");
  move_up(fd, 0, 2 * MIB);
  expect(is_huge(huge + 2 * MIB), "it was not moved as a whole");
  expect(query(image.adverb, image.region).resident[1] == 0, "%llu pages stayed",
         (unsigned long long)query(image.adverb, image.region).resident[1]);
  for (size_t at = 0; at < 2 * MIB; at += PAGE)
    expect(!resident(&image, 0, at) && !resident(&image, 1, at), "the tables say page %zu is there",
           at / PAGE);
  follows_the_address(0, 1);
  follows_the_address(511 * PAGE, 512);
}

// The node each page is on.
static void nodes_of(const char* start, int* nodes) {
  static void* pages[PAGES];
  for (size_t page = 0; page < PAGES; page++)
    pages[page] = (void*)(start + page * PAGE);
  if (syscall(SYS_move_pages, 0, PAGES, pages, NULL, nodes, 0) != 0)
    skip("move_pages: %s", strerror(errno));
}

static long vmstat(const char* name) {
  char word[64];
  long value, found = -1;
  FILE* file = fopen("/proc/vmstat", "r");
  while (file && fscanf(file, "%63s %ld", word, &value) == 2)
    if (strcmp(word, name) == 0)
      found = value;
  if (file)
    fclose(file);
  return found;
}

static void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    skip("CPU %d: %s", cpu, strerror(errno));
}

static volatile bool stop;
static volatile uint64_t rounds; // that the device has been through all pages
static uint64_t written[PAGES];  // the device's last write to a page that was surely seen
static unsigned long shown;      // reads that found the page

// The device writes the second word of each page, looking before and after, and reads the first,
// which stays.
static void* device_at_work(void* argument) {
  (void)argument;
  for (uint64_t round = 1; !stop; rounds = round++) {
    for (size_t page = 0; page < PAGES && !stop; page++) {
      size_t at = page * PAGE;
      uint64_t before = generation(&image, 1, at), word;
      bool in = resident(&image, 1, at);
      device_store(&image, at + 8, round);
      if (in && resident(&image, 1, at) && generation(&image, 1, at) == before)
        written[page] = round;
      else
        // Where the page is now, the next round reaches it. Any way will do to bring it back.
        fault_in_errno(image.adverb, image.region, image.start + at, PAGE, true, NULL);
      if (!reads_pattern(&image, at, &word)) {
        expect(word == page + 1, "page %zu reads %#llx", page, (unsigned long long)word);
        shown++;
      }
    }
  }
  return NULL;
}

// Pages that a thread of node 0 uses come to it from node 1, by hinting faults.
static void numa_balancing(void) {
  static int nodes[PAGES];
  pthread_t device;
  size_t far = PAGES;
  volatile uint64_t sum = 0;
  if (vmstat("numa_pages_migrated") < 0)
    skip("this kernel does not balance");
  run_on(1);
  char* start = memory(LENGTH);
  madvise(start, LENGTH, MADV_NOHUGEPAGE);
  make_image(&image, SOFT, start, LENGTH);
  fill(start, LENGTH, 1);
  fault_in(image.adverb, image.region, start, LENGTH, true);
  nodes_of(start, nodes);
  for (size_t page = 0; page < PAGES; page++)
    if (nodes[page] != 1)
      skip("page %zu is on node %d: CPU 1 is not of a second node", page, nodes[page]);
  long before = vmstat("numa_pages_migrated");
  run_on(0);
  pthread_create(&device, NULL, device_at_work, NULL);
  // A page that leaves during one round is reached in the next.
  for (time_t end = time(NULL) + 60; (far > PAGES / 2 || rounds < 3) && time(NULL) < end;) {
    for (int round = 0; round < 1000; round++)
      for (size_t page = 0; page < PAGES; page++)
        sum += *(volatile uint64_t*)(start + page * PAGE);
    nodes_of(start, nodes);
    far = 0;
    for (size_t page = 0; page < PAGES; page++)
      far += nodes[page] != 0;
  }
  stop = true;
  pthread_join(device, NULL);
  long migrated = vmstat("numa_pages_migrated") - before;
  expect(far <= PAGES / 2, "%zu of %lu pages stayed; %ld migrated", far, PAGES, migrated);
  expect(migrated >= (long)(PAGES - far), "%ld pages migrated, %lu are elsewhere", migrated,
         PAGES - far);
  struct adverb_query now = query(image.adverb, image.region);
  expect(now.leave >= PAGES - far, "%llu pages left", (unsigned long long)now.leave);
  expect(shown > 0, "the device never read a page");
  for (size_t page = 0; page < PAGES; page++) {
    expect(written[page] != 0, "page %zu was never reached", page);
    uint64_t word = *(uint64_t*)(start + page * PAGE + 8);
    // Later writes may have landed without being sure of it.
    expect(word >= written[page], "page %zu holds %llu, the device wrote %llu", page,
           (unsigned long long)word, (unsigned long long)written[page]);
    expect(*(uint64_t*)(start + page * PAGE) == page + 1, "page %zu has lost its own word", page);
  }
  fault_in(image.adverb, image.region, start, LENGTH, true);
  for (size_t page = 0; page < PAGES; page++) {
    expect(device_word(&image, page * PAGE) == page + 1, "page %zu afterwards", page);
    device_store(&image, page * PAGE, 7000 + page);
    expect(*(uint64_t*)(start + page * PAGE) == 7000 + page, "the device writes to the old node");
  }
  note("%lu of %lu pages changed their node, numa_pages_migrated grew by %ld, %llu left, %llu "
       "brought back by the worker",
       PAGES - far, PAGES, migrated, (unsigned long long)now.leave, (unsigned long long)now.remaps);
}

int main(int count, char** words) {
  choose(count, words);
  run("userfaultfd move: the device stays with the address", userfault_move);
  run("userfaultfd move of a huge page: the device stays with the address", userfault_move_huge);
  run("NUMA balancing: pages come to their thread under the device", numa_balancing);
  return verdict();
}
