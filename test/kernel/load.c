// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A NIC that moves frames without a pause, while the pages below it leave, move and return.
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define NIC "/dev/adverb_test_nic"
#define WINDOW 64UL // pages churned, and frames sent each way, at a time
#define PAGES 512   // read by the device, and as many that it writes behind them
#define LINE 64     // a PCIe read is served in pieces of no less
#define WORDS (ADVERB_TEST_FRAME / 8)
#define GRANULES (WINDOW / ADVERB_GRANULE_PAGES)
#define WINDOWS (2 * PAGES / WINDOW)
#define SIZE (2 * PAGES * PAGE)
#define RETARGETS 300000
#define RETARGETS_OF_FILE 30000
#define SECONDS 150
#define OTHERS 0x07e0705ec7e75eb1 // in every word of memory that is none of the device's business

static struct image image;
static volatile bool stop;
static volatile uint64_t exchanges; // of the device, so far
static uint64_t from_device[WINDOW][WORDS], to_device[WINDOW][WORDS];
static unsigned long moved, real, parked, empty, valid, redo;
static int file; // what is mapped; 0: nothing is, the memory is anonymous

static uint64_t content(size_t page, size_t word) {
  return (page << 20 | word) * 0x9e3779b97f4a7c15;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// Pages to the other node: the same bytes at the same address in other memory.
static unsigned long move_window(char* start, int node) {
  void* pages[WINDOW];
  int nodes[WINDOW], status[WINDOW];
  unsigned long moved = 0;
  for (size_t i = 0; i < WINDOW; i++) {
    pages[i] = start + i * PAGE;
    nodes[i] = node;
  }
  if (syscall(SYS_move_pages, 0, WINDOW, pages, nodes, status, MPOL_MF_MOVE) < 0)
    return 0;
  for (size_t i = 0; i < WINDOW; i++)
    moved += status[i] == node;
  return moved;
}

// Takes rights from the pages of a window, and gives them back: they leave, and are faulted in
// again.
static void leave_and_return(char* start, bool write) {
  // The test itself reads the pages that the device writes.
  mprotect(start, WINDOW * PAGE, write ? PROT_READ : PROT_NONE);
  mprotect(start, WINDOW * PAGE, PROT_READ | PROT_WRITE);
  int error = fault_in_errno(image.adverb, image.region, start, WINDOW * PAGE, write, NULL);
  if (error != 0 && error != EAGAIN)
    fail("fault-in: %s", strerror(error));
}

static void* churn(void* argument) {
  unsigned seed = 1;
  for (unsigned round = 0; !stop; round++) {
    size_t window = (size_t)rand_r(&seed) % WINDOWS;
    char* start = image.start + window * WINDOW * PAGE;
    if (round % 8 == 0)
      moved += move_window(start, (int)(round / 8 % 2));
    leave_and_return(start, window >= PAGES / WINDOW);
  }
  return argument;
}

// Pages of a window from the file's, by a hole or by the end of the file; then also all behind it.
static void take_from_file(size_t window, bool truncate) {
  off_t at = (off_t)(window * WINDOW * PAGE);
  int error = truncate ? ftruncate(file, at) != 0 || ftruncate(file, SIZE) != 0
                       : fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
                                   WINDOW * PAGE) != 0;
  expect(!error, "%s: %s", truncate ? "ftruncate" : "fallocate", strerror(errno));
}

// Memory that gets the pages just freed, as the kernel hands out first what was freed last.
static uint64_t* others_memory(void) {
  uint64_t* start = (uint64_t*)memory(WINDOW * PAGE);
  for (size_t word = 0; word < WINDOW * PAGE / 8; word++)
    start[word] = OTHERS;
  return start;
}

static void check_others(uint64_t* start) {
  for (size_t word = 0; word < WINDOW * PAGE / 8; word++)
    expect(start[word] == OTHERS,
           "the device wrote %#llx to a page that is not the file's any more",
           (unsigned long long)start[word]);
  munmap(start, WINDOW * PAGE);
}

static void write_content(size_t window) {
  for (size_t page = window * WINDOW; page < (window + 1) * WINDOW; page++)
    for (size_t word = 0; word < PAGE / 8; word++)
      ((uint64_t*)(image.start + page * PAGE))[word] = content(page, word);
}

// Until the device has been at all windows once more.
static void wait_for_device(void) {
  uint64_t until = exchanges + PAGES / WINDOW;
  while (!stop && exchanges < until)
    sched_yield();
}

static void* churn_file(void* argument) {
  unsigned seed = 2;
  for (unsigned round = 0; !stop; round++) {
    size_t window = (size_t)rand_r(&seed) % WINDOWS;
    bool truncate = round % 8 == 7;
    take_from_file(window, truncate);
    uint64_t* others = others_memory();
    wait_for_device();
    check_others(others);
    for (size_t last = truncate ? WINDOWS - 1 : window; window <= last; window++) {
      bool write = window >= WINDOWS / 2;
      char* start = image.start + window * WINDOW * PAGE;
      if (!write)
        write_content(window);
      int error = fault_in_errno(image.adverb, image.region, start, WINDOW * PAGE, write, NULL);
      expect(error == 0 || error == EAGAIN, "fault-in: %s", strerror(error));
    }
  }
  return argument;
}

// Frames from the window at page `out` and into the one at page `in`, in turns.
static void transfer(size_t out, size_t in) {
  struct adverb_test_frames frames = {.read = {.slot = ADVERB_VIEW_READ,
                                               .count = WINDOW,
                                               .offset = out * PAGE,
                                               .data = (uintptr_t)from_device},
                                      .write = {.slot = ADVERB_VIEW_WRITE,
                                                .count = WINDOW,
                                                .offset = in * PAGE,
                                                .data = (uintptr_t)to_device}};
  if (ioctl(image.device, ADVERB_TEST_FRAMES, &frames) != 0)
    fail("frames: %s", strerror(errno));
  expect(frames.lost == 0, "the device gave up on %llu of %lu frames",
         (unsigned long long)frames.lost, 2 * WINDOW);
}

// Each piece that a PCIe read is served in must be the page's own bytes, or the pattern.
static void check_read(size_t page, const uint64_t* frame) {
  for (size_t word = 0; word < WORDS; word += LINE / 8) {
    uint64_t expected[LINE / 8];
    for (size_t k = 0; k < LINE / 8; k++)
      expected[k] = content(page, word + k);
    if (memcmp(&frame[word], expected, LINE) == 0)
      real++;
    else if (memcmp(&frame[word], image.pattern + word * 8, LINE) == 0)
      parked++;
    else
      fail("page %zu, word %zu reads %#llx", page, word, (unsigned long long)frame[word]);
  }
}

// The same of a file whose pages begin as zeros and are written word by word while they are read.
static void check_read_of_file(size_t page, const uint64_t* frame) {
  for (size_t word = 0; word < WORDS; word++) {
    uint64_t pattern;
    memcpy(&pattern, image.pattern + word * 8, sizeof pattern);
    if (frame[word] == content(page, word))
      real++;
    else if (frame[word] == pattern)
      parked++;
    else if (frame[word] == 0)
      empty++;
    else
      fail("page %zu, word %zu reads %#llx", page, word, (unsigned long long)frame[word]);
  }
}

static uint64_t word_of(size_t page) {
  uintptr_t size = ADVERB_GRANULE_PAGES * PAGE;
  size_t granule = ((uintptr_t)image.start + page * PAGE) / size - (uintptr_t)image.start / size;
  return image.words[ADVERB_VIEW_WRITE][granule];
}

// What the state table says has landed, has.
static void check_written(size_t page, const uint64_t* frame, uint64_t before, uint64_t after) {
  static uint64_t there[WORDS];
  bool same = ADVERB_WORD_RESIDENT(before) == 0xffff && before == after;
  if (!same) {
    redo++;
    return;
  }
  if (!file)
    memcpy(there, image.start + page * PAGE, sizeof there);
  // What the file has lost since is not there to be compared, and would be SIGBUS as memory.
  else if (pread(file, there, sizeof there, (off_t)(page * PAGE)) != sizeof there ||
           word_of(page) != before)
    return;
  valid++;
  if (memcmp(there, frame, sizeof there) != 0)
    fail("page %zu: validated, but holds %#llx instead of %#llx", page,
         (unsigned long long)there[0], (unsigned long long)frame[0]);
}

static void words_of(size_t page, uint64_t words[GRANULES]) {
  for (size_t g = 0; g < GRANULES; g++)
    words[g] = word_of(page + g * ADVERB_GRANULE_PAGES);
}

static void exchange(uint64_t number) {
  size_t out = number % (PAGES / WINDOW) * WINDOW, in = PAGES + out;
  uint64_t before[GRANULES], after[GRANULES];
  for (size_t i = 0; i < WINDOW; i++)
    for (size_t word = 0; word < WORDS; word++)
      to_device[i][word] = number << 16 | i;
  words_of(in, before);
  transfer(out, in);
  words_of(in, after);
  for (size_t i = 0; i < WINDOW; i++) {
    size_t g = i / ADVERB_GRANULE_PAGES;
    (file ? check_read_of_file : check_read)(out + i, from_device[i]);
    check_written(in + i, to_device[i], before[g], after[g]);
  }
  exchanges = number;
}

// A region over `start`, whose first page of a granule is the first of a window.
static void prepare(char* start) {
  make_image(&image, NIC, start, SIZE);
  for (size_t window = 0; window < WINDOWS / 2; window++)
    write_content(window);
}

static void load(void* (*churn)(void*), uint64_t retargets) {
  pthread_t thread;
  uint64_t number = 0;
  double began = now();
  pthread_create(&thread, NULL, churn, NULL);
  while (now() < began + SECONDS && query(image.adverb, image.region).retargets < retargets)
    exchange(++number);
  double seconds = now() - began;
  stop = true;
  pthread_join(thread, NULL);
  struct adverb_query end = query(image.adverb, image.region);
  expect(end.retargets >= retargets, "only %llu retargets in %d s",
         (unsigned long long)end.retargets, SECONDS);
  expect(real > 0 && parked > 0, "%lu pieces of pages, %lu of the pattern", real, parked);
  expect(valid > 0 && redo > 0, "%lu writes validated, %lu to redo", valid, redo);
  note("%llu retargets, %llu syncs in %.1f s; %lu frames each way: %lu pieces of pages, %lu empty, "
       "%lu of the pattern, %lu writes validated, %lu to redo; %lu pages moved",
       (unsigned long long)end.retargets, (unsigned long long)end.syncs, seconds, number * WINDOW,
       real, empty, parked, valid, redo, moved);
}

static void both_ways(void) {
  size_t window = WINDOW * PAGE;
  char* start = memory(SIZE + window);
  prepare((char*)(((uintptr_t)start + window - 1) & ~(window - 1)));
  load(churn, RETARGETS);
}

static void of_file(void) {
  file = memfd_create("np_load", MFD_CLOEXEC);
  expect(file > 0 && ftruncate(file, SIZE) == 0, "memfd: %s", strerror(errno));
  char* start =
      mmap((void*)(1UL << 40), SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  expect(start != MAP_FAILED, "mmap: %s", strerror(errno));
  prepare(start);
  load(churn_file, RETARGETS_OF_FILE);
}

int main(int count, char** words) {
  choose(count, words);
  run("under load both ways, frames are whole line by line and validated writes have landed",
      both_ways);
  run("truncate and hole punch under DMA: the device reaches only what is the file's", of_file);
  return verdict();
}
