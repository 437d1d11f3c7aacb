// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region of four extents with every page resident goes at once. That takes as long as it takes,
// but no lock is held for all of it: devices, and other regions of the process, get in between.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define EXTENTS 4
#define GIB (1UL << 30)
#define LENGTH (EXTENTS * GIB)

// How often somebody must have got in between while all of it left. An extent leaves in 512
// batches, and the lock is free after each, so a device that waits its turn gets in hundreds of
// times; where the two CPUs are one in truth, at least once in a slice of time. If an extent left
// under one lock, it would be never. So the bar is no matter of speed.
#define TURNS 8

static struct image extents[EXTENTS]; // the read view of each, for the device
static int adverb;
static uint32_t region;
static char* start;
static volatile bool stop;
static double longest; // seconds a read by the device took

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void all_resident(void) {
  char* all = mmap(NULL, LENGTH + GIB, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED)
    skip("no room: %s", strerror(errno));
  start = (char*)(((uintptr_t)all + GIB - 1) & ~(GIB - 1));
  madvise(start, LENGTH, MADV_HUGEPAGE);
  adverb = open_adverb();
  region = create(adverb, start, LENGTH);
  for (int i = 0; i < EXTENTS; i++) {
    struct adverb_build build;
    for (int view = 1; view >= 0; view--)
      expect(build_errno(adverb, region, start + i * GIB, view, &build) == 0, "build");
    struct adverb_test_import import = {.slot = 0, .fd = build.fd};
    expect(ioctl(extents[i].device, ADVERB_TEST_IMPORT, &import) == 0, "import");
    // What the device reads of a page that is there; of one that is not, the pattern.
    *(uint64_t*)(start + i * GIB) = 1;
    *(uint64_t*)(start + (i + 1) * GIB - PAGE) = 2;
  }
  fault_in(adverb, region, start, LENGTH, true);
  struct adverb_query all_in = query(adverb, region);
  expect(all_in.resident[0] == LENGTH / PAGE && all_in.resident[1] == LENGTH / PAGE,
         "%llu and %llu pages resident", (unsigned long long)all_in.resident[0],
         (unsigned long long)all_in.resident[1]);
}

static void open_devices(void) {
  for (int i = 0; i < EXTENTS; i++) {
    extents[i].device = open(SOFT, O_RDWR);
    expect(extents[i].device >= 0, "%s: %s", SOFT, strerror(errno));
  }
}

static uint64_t timed_word(int i, size_t offset) {
  double before = now();
  uint64_t word = device_word(&extents[i], offset);
  if (now() - before > longest)
    longest = now() - before;
  return word;
}

// An extent whose first page has left while its last is still there is on its way: the device was
// let in between. Counts these, until the last page of all has left.
static unsigned long watch(void) {
  unsigned long turns = 0;
  for (int i = 0; i < EXTENTS; i++)
    while (timed_word(i, GIB - PAGE) == 2)
      turns += timed_word(i, 0) != 1 && timed_word(i, GIB - PAGE) == 2;
  return turns;
}

static void* watch_in_thread(void* turns) {
  *(unsigned long*)turns = watch();
  return NULL;
}

// Another region of the same process, whose pages come and go.
static void* other_region(void* argument) {
  unsigned long* rounds = argument;
  char* own = memory(64 * PAGE);
  struct adverb_build build;
  uint32_t other = create(adverb, own, 64 * PAGE);
  expect(build_errno(adverb, other, own, 0, &build) == 0, "build");
  for (; !stop; ++*rounds) {
    expect(madvise(own, 64 * PAGE, MADV_DONTNEED) == 0, "madvise");
    fault_in(adverb, other, own, 64 * PAGE, false);
  }
  return NULL;
}

static void leaves_with_munmap(void) {
  pthread_t watcher, neighbour;
  unsigned long turns = 0;
  static volatile unsigned long rounds;
  open_devices();
  all_resident();
  pthread_create(&watcher, NULL, watch_in_thread, &turns);
  pthread_create(&neighbour, NULL, other_region, (void*)&rounds);
  while (rounds == 0)
    usleep(1000);
  unsigned long before = rounds;
  double begin = now();
  expect(munmap(start, LENGTH) == 0, "munmap");
  double took = now() - begin;
  unsigned long meanwhile = rounds - before;
  stop = true;
  pthread_join(watcher, NULL);
  pthread_join(neighbour, NULL);
  struct adverb_query after = query(adverb, region);
  expect(after.resident[0] == 0 && after.resident[1] == 0, "%llu pages stayed",
         (unsigned long long)after.resident[1]);
  expect(after.leave == 2 * LENGTH / PAGE, "%llu pages left", (unsigned long long)after.leave);
  expect(turns >= TURNS, "the device got in %lu times in %.2f s, its longest wait was %.3f s",
         turns, took, longest);
  expect(meanwhile >= TURNS, "the other region got %lu rounds in %.2f s", meanwhile, took);
  note("munmap took %.2f s; the device got in %lu times (longest read %.3f s), another region "
       "left and came %lu times",
       took, turns, longest, meanwhile);
}

static void leaves_with_exit(void) {
  int ends[2], status;
  unsigned long turns;
  char ready;
  open_devices();
  expect(pipe(ends) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    all_resident();
    expect(write(ends[1], "r", 1) == 1, "ready");
    pause();
  }
  close(ends[1]);
  expect(read(ends[0], &ready, 1) == 1, "the owner died early");
  double begin = now();
  kill(child, SIGKILL);
  turns = watch();
  waitpid(child, &status, 0);
  double took = now() - begin;
  uint64_t pattern = device_word(&extents[0], 0);
  for (int i = 0; i < EXTENTS; i++)
    for (size_t page = 0; page < GIB; page += 511 * PAGE)
      expect(pattern > 2 && device_word(&extents[i], page) == pattern,
             "page %zu of extent %d is still read", page / PAGE, i);
  expect(turns >= TURNS, "the device got in %lu times in %.2f s, its longest wait was %.3f s",
         turns, took, longest);
  note("exit took %.2f s; the device got in %lu times (longest read %.3f s)", took, turns, longest);
}

int main(int count, char** words) {
  choose(count, words);
  run("munmap of 4 GiB resident: devices and other regions get in between", leaves_with_munmap);
  run("exit with 4 GiB resident: devices get in between", leaves_with_exit);
  return verdict();
}
