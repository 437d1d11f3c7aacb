// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A NIC that moves frames without a pause, while the pages below it leave, move and return.
#include <errno.h>
#include <linux/mempolicy.h>
#include <pthread.h>
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
#define RETARGETS 100000
#define SECONDS 150

static struct image image;
static volatile bool stop;
static uint64_t from_device[WINDOW][WORDS], to_device[WINDOW][WORDS];
static unsigned long moved, real, parked, valid, redo;

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
    size_t window = (size_t)rand_r(&seed) % (2 * PAGES / WINDOW);
    char* start = image.start + window * WINDOW * PAGE;
    if (round % 8 == 0)
      moved += move_window(start, (int)(round / 8 % 2));
    leave_and_return(start, window >= PAGES / WINDOW);
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

// What the state table says has landed, has.
static void check_written(size_t page, const uint64_t* frame, uint64_t before, uint64_t after) {
  if (ADVERB_WORD_RESIDENT(before) != 0xffff || before != after) {
    redo++;
    return;
  }
  valid++;
  const uint64_t* there = (const uint64_t*)(image.start + page * PAGE);
  if (memcmp(there, frame, ADVERB_TEST_FRAME) != 0)
    fail("page %zu: validated, but holds %#llx instead of %#llx", page,
         (unsigned long long)there[0], (unsigned long long)frame[0]);
}

static void words_of(size_t page, uint64_t words[GRANULES]) {
  uintptr_t size = ADVERB_GRANULE_PAGES * PAGE;
  size_t first = ((uintptr_t)image.start + page * PAGE) / size - (uintptr_t)image.start / size;
  for (size_t g = 0; g < GRANULES; g++)
    words[g] = image.words[ADVERB_VIEW_WRITE][first + g];
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
    check_read(out + i, from_device[i]);
    check_written(in + i, to_device[i], before[g], after[g]);
  }
}

static void prepare(void) {
  size_t length = 2 * PAGES * PAGE, window = WINDOW * PAGE;
  // The first page of a granule is the first of a window.
  char* start = memory(length + window);
  start = (char*)(((uintptr_t)start + window - 1) & ~(window - 1));
  make_image(&image, NIC, start, length);
  for (size_t page = 0; page < PAGES; page++)
    for (size_t word = 0; word < PAGE / 8; word++)
      ((uint64_t*)(start + page * PAGE))[word] = content(page, word);
}

static void both_ways(void) {
  pthread_t thread;
  uint64_t number = 0;
  double began = now();
  prepare();
  pthread_create(&thread, NULL, churn, NULL);
  while (now() < began + SECONDS && query(image.adverb, image.region).retargets < RETARGETS)
    exchange(++number);
  double seconds = now() - began;
  stop = true;
  pthread_join(thread, NULL);
  struct adverb_query end = query(image.adverb, image.region);
  expect(end.retargets >= RETARGETS, "only %llu retargets in %d s",
         (unsigned long long)end.retargets, SECONDS);
  expect(real > 0 && parked > 0, "%lu lines of pages, %lu of the pattern", real, parked);
  expect(valid > 0 && redo > 0, "%lu writes validated, %lu to redo", valid, redo);
  note("%llu retargets, %llu syncs in %.1f s; %lu frames each way: %lu lines of pages, %lu of the "
       "pattern, %lu writes validated, %lu to redo; %lu pages moved",
       (unsigned long long)end.retargets, (unsigned long long)end.syncs, seconds, number * WINDOW,
       real, parked, valid, redo, moved);
}

int main(int count, char** words) {
  choose(count, words);
  run("under load both ways, frames are whole line by line and validated writes have landed",
      both_ways);
  return verdict();
}
