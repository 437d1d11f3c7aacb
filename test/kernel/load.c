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
#define WINDOW 64 // pages churned, and frames sent, at a time
#define PAGES 1024
#define LENGTH (PAGES * PAGE)
#define LINE 64 // a PCIe read is served in pieces of no less
#define WORDS (ADVERB_TEST_FRAME / 8)
#define RETARGETS 51000 // in each of the two tests
#define SECONDS 80

static struct image image;
static volatile bool stop;
static uint64_t frames[WINDOW][WORDS];

struct churn {
  int protection; // what pages lose their rights to
  bool write;
  unsigned long moved;
};

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
  for (int i = 0; i < WINDOW; i++) {
    pages[i] = start + i * PAGE;
    nodes[i] = node;
  }
  if (syscall(SYS_move_pages, 0, WINDOW, pages, nodes, status, MPOL_MF_MOVE) < 0)
    return 0;
  for (int i = 0; i < WINDOW; i++)
    moved += status[i] == node;
  return moved;
}

static void* churn(void* argument) {
  struct churn* churn = argument;
  unsigned seed = 1;
  for (unsigned round = 0; !stop; round++) {
    char* start = image.start + (size_t)(rand_r(&seed) % (PAGES / WINDOW)) * WINDOW * PAGE;
    if (round % 8 == 0)
      churn->moved += move_window(start, (int)(round / 8 % 2));
    mprotect(start, WINDOW * PAGE, churn->protection);
    mprotect(start, WINDOW * PAGE, PROT_READ | PROT_WRITE);
    int error =
        fault_in_errno(image.adverb, image.region, start, WINDOW * PAGE, churn->write, NULL);
    if (error != 0 && error != EAGAIN)
      fail("fault-in: %s", strerror(error));
  }
  return NULL;
}

static void transfer(bool write, size_t page) {
  struct adverb_test_frames argument = {.slot = write ? ADVERB_VIEW_WRITE : ADVERB_VIEW_READ,
                                        .write = write,
                                        .offset = page * PAGE,
                                        .count = WINDOW,
                                        .data = (uintptr_t)frames};
  if (ioctl(image.device, ADVERB_TEST_FRAMES, &argument) != 0)
    fail("frames: %s", strerror(errno));
  expect(argument.lost == 0, "the device gave up on %u of %u frames", argument.lost, WINDOW);
}

static void prepare(void) {
  make_image(&image, NIC, memory(LENGTH), LENGTH);
  for (size_t page = 0; page < PAGES; page++)
    for (size_t word = 0; word < PAGE / 8; word++)
      ((uint64_t*)(image.start + page * PAGE))[word] = content(page, word);
}

static unsigned long long retargets(void) {
  return query(image.adverb, image.region).retargets;
}

static void reads_are_whole(void) {
  struct churn argument = {.protection = PROT_NONE, .write = false};
  unsigned long real = 0, parked = 0;
  pthread_t thread;
  double end = now() + SECONDS;
  prepare();
  pthread_create(&thread, NULL, churn, &argument);
  for (size_t n = 0; now() < end && retargets() < RETARGETS; n++) {
    size_t first = n % (PAGES / WINDOW) * WINDOW;
    transfer(false, first);
    for (size_t i = 0; i < WINDOW; i++)
      for (size_t word = 0; word < WORDS; word += LINE / 8) {
        uint64_t expected[LINE / 8];
        for (size_t k = 0; k < LINE / 8; k++)
          expected[k] = content(first + i, word + k);
        if (memcmp(&frames[i][word], expected, LINE) == 0)
          real++;
        else if (memcmp(&frames[i][word], image.pattern + word * 8, LINE) == 0)
          parked++;
        else
          fail("page %zu, word %zu reads %#llx", first + i, word,
               (unsigned long long)frames[i][word]);
      }
  }
  stop = true;
  pthread_join(thread, NULL);
  expect(retargets() >= RETARGETS, "only %llu retargets in %d s", retargets(), SECONDS);
  expect(real > 0 && parked > 0, "%lu lines of pages, %lu of the pattern", real, parked);
  note("%llu retargets, %llu syncs, %lu lines of pages, %lu of the pattern, %lu pages moved",
       retargets(), (unsigned long long)query(image.adverb, image.region).syncs, real, parked,
       argument.moved);
}

static uint64_t granule_word(size_t page) {
  uintptr_t size = ADVERB_GRANULE_PAGES * PAGE;
  return image
      .words[1][((uintptr_t)image.start + page * PAGE) / size - (uintptr_t)image.start / size];
}

static void validated_writes(void) {
  struct churn argument = {.protection = PROT_READ, .write = true};
  unsigned long valid = 0, redo = 0;
  pthread_t thread;
  double end = now() + SECONDS;
  // The first page of a granule is the first of a window.
  char* start = memory(2 * LENGTH);
  start = (char*)(((uintptr_t)start + WINDOW * PAGE - 1) & ~(WINDOW * PAGE - 1));
  make_image(&image, NIC, start, LENGTH);
  pthread_create(&thread, NULL, churn, &argument);
  for (uint64_t n = 1; now() < end && retargets() < RETARGETS; n++) {
    size_t first = n % (PAGES / WINDOW) * WINDOW, granules = WINDOW / ADVERB_GRANULE_PAGES;
    uint64_t before[WINDOW / ADVERB_GRANULE_PAGES], after[WINDOW / ADVERB_GRANULE_PAGES];
    for (size_t i = 0; i < WINDOW; i++)
      for (size_t word = 0; word < WORDS; word++)
        frames[i][word] = n << 16 | i;
    for (size_t g = 0; g < granules; g++)
      before[g] = granule_word(first + g * ADVERB_GRANULE_PAGES);
    transfer(true, first);
    for (size_t g = 0; g < granules; g++)
      after[g] = granule_word(first + g * ADVERB_GRANULE_PAGES);
    for (size_t i = 0; i < WINDOW; i++) {
      size_t g = i / ADVERB_GRANULE_PAGES;
      if (ADVERB_WORD_RESIDENT(before[g]) != 0xffff || before[g] != after[g]) {
        redo++;
        continue;
      }
      valid++;
      const uint64_t* page = (const uint64_t*)(start + (first + i) * PAGE);
      if (page[0] != (n << 16 | i) || page[WORDS - 1] != (n << 16 | i))
        fail("page %zu: validated, but holds %#llx", first + i, (unsigned long long)page[0]);
    }
  }
  stop = true;
  pthread_join(thread, NULL);
  expect(retargets() >= RETARGETS, "only %llu retargets in %d s", retargets(), SECONDS);
  expect(valid > 0 && redo > 0, "%lu validated, %lu to redo", valid, redo);
  note("%llu retargets, %lu writes validated, %lu to redo, %lu pages moved", retargets(), valid,
       redo, argument.moved);
}

int main(int count, char** words) {
  choose(count, words);
  run("frames from pages that leave and move are complete, line by line", reads_are_whole);
  run("writes validated by the state table have landed", validated_writes);
  return verdict();
}
