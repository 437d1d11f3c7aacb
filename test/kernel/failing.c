// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Any allocation may fail. Each call of the module is made with its first allocation failing, then
// with its second, and so on until it makes no more (fail-nth, on the debug kernel): each time it
// works all the same, or is refused for want of memory and leaves everything as it was.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define LENGTH (4 * MIB)
#define CHUNK (2 * MIB) // of pages, with a table of its own
#define MOST 5000       // allocations, far from what any call makes
#define WAIT_MS 100

static int fail_nth;
static int adverb;
static uint32_t region; // 0: not yet
static char* start;

// Also those that may sleep, and single pages; without a stack in the log for each.
static void let_all_fail(void) {
  static const char* const settings[][2] = {
      {"failslab/ignore-gfp-wait", "N"},        {"failslab/verbose", "0"},
      {"fail_page_alloc/ignore-gfp-wait", "N"}, {"fail_page_alloc/ignore-gfp-highmem", "N"},
      {"fail_page_alloc/min-order", "0"},       {"fail_page_alloc/verbose", "0"}};
  char path[80];
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
    snprintf(path, sizeof path, "/sys/kernel/debug/%s", settings[i][0]);
    write_file(path, settings[i][1]);
  }
  fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
  expect(fail_nth >= 0, "fail-nth: %s", strerror(errno));
}

static void begin(void) {
  let_all_fail();
  adverb = open_adverb();
  start = memory(LENGTH);
}

static void begin_with_region(void) {
  begin();
  region = create(adverb, start, LENGTH);
}

// Makes the call with allocation number n of it failing; true: it has had so many.
static bool fails_at(unsigned n, int (*call)(void), int* error) {
  char text[16];
  int length = snprintf(text, sizeof text, "%u", n);
  expect(pwrite(fail_nth, text, (size_t)length, 0) == length, "fail-nth: %s", strerror(errno));
  *error = call();
  ssize_t count = pread(fail_nth, text, sizeof text - 1, 0);
  expect(count > 0 && pwrite(fail_nth, "0", 1, 0) == 1, "fail-nth: %s", strerror(errno));
  text[count] = 0;
  return atoi(text) == 0;
}

// `call` returns an errno, and `undo` takes back what it has done, so that each try begins with the
// same. Besides ENOMEM it may fail with `also`.
static void each_fails(int (*call)(void), void (*undo)(int error), int also) {
  unsigned refused = 0, n = 0;
  unsigned long long before = region ? query(adverb, region).charged_pages : 0, after = before;
  bool failed = true;
  int error;
  while (failed) {
    expect(++n < MOST, "there is no end");
    failed = fails_at(n, call, &error);
    expect(error == 0 || (failed && (error == ENOMEM || error == also)),
           "with its allocation %u failing: %s", n, strerror(error));
    refused += error != 0;
    undo(error);
    if (region)
      after = query(adverb, region).charged_pages;
    expect(after == before, "with its allocation %u failing: %llu pages are charged, not %llu", n,
           after, before);
  }
  expect(n > 1, "it has made none");
  note("%u allocations, %u of which refuse it", n - 1, refused);
}

static int opened;

static int open_file(void) {
  opened = open("/dev/adverb", O_RDWR | O_CLOEXEC);
  return opened < 0 ? errno : 0;
}

static void close_file(int error) {
  if (error == 0)
    close(opened);
}

static void files(void) {
  begin();
  each_fails(open_file, close_file, 0);
}

static uint32_t made;

static int create_region(void) {
  return create_errno(adverb, start, LENGTH, &made);
}

static void destroy_region(int error) {
  expect(error != 0 || destroy_errno(adverb, made) == 0, "destroy: %s", strerror(errno));
}

static void regions(void) {
  begin();
  each_fails(create_region, destroy_region, 0);
}

static struct adverb_build views[2];

static int build_read(void) {
  return build_errno(adverb, region, start, ADVERB_VIEW_READ, &views[0]);
}

static int build_write(void) {
  return build_errno(adverb, region, start, ADVERB_VIEW_WRITE, &views[1]);
}

static void give_back(int view) {
  close(views[view].fd);
  int error = give_back_errno(adverb, region, start, view);
  expect(error == 0, "giving view %d back: %s", view, strerror(error));
}

static void give_back_read(int error) {
  if (error == 0)
    give_back(ADVERB_VIEW_READ);
}

static void give_back_write(int error) {
  if (error == 0)
    give_back(ADVERB_VIEW_WRITE);
}

static void views_are_built(void) {
  begin_with_region();
  each_fails(build_read, give_back_read, 0);
}

static void second_views_are_built(void) {
  begin_with_region();
  expect(build_read() == 0, "build");
  each_fails(build_write, give_back_write, 0);
}

static void build_both(void) {
  expect(build_read() == 0 && build_write() == 0, "build");
}

static void* table;

static int map_table(void) {
  table = mmap(NULL, views[0].table_length, PROT_READ, MAP_SHARED, adverb,
               (off_t)views[0].table_offset);
  return table == MAP_FAILED ? errno : 0;
}

static void unmap_table(int error) {
  expect(error != 0 || munmap(table, views[0].table_length) == 0, "munmap");
}

static void tables_are_mapped(void) {
  begin_with_region();
  build_both();
  each_fails(map_table, unmap_table, 0);
  give_back(ADVERB_VIEW_READ); // EBUSY if one were still in use
}

// Some pages of both chunks.
static char* pages(void) {
  return (char*)(((uintptr_t)start + CHUNK) & ~(CHUNK - 1)) - 8 * PAGE;
}

static int bring(unsigned flags) {
  size_t done = 0;
  int error = bring_errno(adverb, region, pages(), 16 * PAGE, flags, &done);
  struct adverb_query now = query(adverb, region);
  expect((error == 0) == (done == 16 * PAGE), "%zu bytes: %s", done, strerror(error));
  expect(now.resident[0] >= done / PAGE, "%zu bytes are in, and %llu pages are", done,
         (unsigned long long)now.resident[0]);
  return error;
}

static int bring_in(void) {
  return bring(ADVERB_FAULT_WRITE);
}

static int show(void) {
  return bring(ADVERB_FAULT_WRITE | ADVERB_FAULT_PRESENT);
}

// What was charged for pages goes with the views.
static void take_pages(int error) {
  (void)error;
  give_back(ADVERB_VIEW_WRITE);
  give_back(ADVERB_VIEW_READ);
  expect(query(adverb, region).resident[0] == 0, "pages are still in");
  expect(madvise(start, LENGTH, MADV_DONTNEED) == 0, "MADV_DONTNEED: %s", strerror(errno));
  build_both();
}

static void pages_are_brought_in(void) {
  begin_with_region();
  expect(madvise(start, LENGTH, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
  build_both();
  each_fails(bring_in, take_pages, 0);
}

static void take_pages_and_fill(int error) {
  take_pages(error);
  fill(pages(), 16 * PAGE, 1);
}

static void pages_are_shown(void) {
  begin_with_region();
  expect(madvise(start, LENGTH, MADV_NOHUGEPAGE) == 0, "MADV_NOHUGEPAGE");
  build_both();
  fill(pages(), 16 * PAGE, 1);
  each_fails(show, take_pages_and_fill, 0);
}

static int device;

static int import_fd(int fd) {
  struct adverb_test_import argument = {.slot = 0, .fd = fd};
  return ioctl(device, ADVERB_TEST_IMPORT, &argument) == 0 ? 0 : errno;
}

static int attach(void) {
  unsigned long long refused = query(adverb, region).refused;
  int error = import_fd(views[0].fd);
  // The DMA API tells no want of memory from a want of addresses.
  expect(query(adverb, region).refused - refused == (error == ENOSPC), "%s: %llu refusals",
         strerror(error), query(adverb, region).refused - refused);
  return error;
}

static void detach(int error) {
  expect(error != 0 || import_fd(-1) == 0, "detach: %s", strerror(errno));
}

static void devices_attach(void) {
  begin_with_region();
  build_both();
  device = open(EDU, O_RDWR | O_CLOEXEC);
  expect(device >= 0, "%s: %s", EDU, strerror(errno));
  each_fails(attach, detach, ENOSPC);
}

static const char* name;

static int check(void) {
  char reason[ADVERB_REASON_SIZE];
  return device_check_errno(adverb, region, start, ADVERB_VIEW_READ, name, reason);
}

static void nothing(int error) {
  (void)error;
}

static void devices_are_asked_for(void) {
  begin_with_region();
  build_both();
  name = pci_device("adverb_test_edu", "0000:00");
  each_fails(check, nothing, ENOSPC);
}

static int monitor;

static int begin_monitor(void) {
  struct adverb_monitor_begin argument = {.wait_ms = WAIT_MS};
  return ioctl(monitor, ADVERB_IOC_MONITOR, &argument) == 0 ? 0 : errno;
}

static void end_monitor(int error) {
  (void)error;
  close(monitor);
  monitor = open_adverb();
}

static void monitors(void) {
  begin();
  monitor = open_adverb();
  each_fails(begin_monitor, end_monitor, 0);
}

static uint32_t watched;

static int watch(void) {
  struct adverb_watch argument = {.start = (uintptr_t)start, .length = LENGTH};
  int error = ioctl(monitor, ADVERB_IOC_WATCH, &argument) == 0 ? 0 : errno;
  watched = argument.watch;
  return error;
}

static void unwatch(int error) {
  struct adverb_unwatch argument = {.watch = watched};
  expect(error != 0 || ioctl(monitor, ADVERB_IOC_UNWATCH, &argument) == 0, "unwatch: %s",
         strerror(errno));
}

static void ranges_are_watched(void) {
  begin();
  monitor = open_adverb();
  expect(begin_monitor() == 0, "monitor: %s", strerror(errno));
  each_fails(watch, unwatch, 0);
}

static int unheard; // calls that nobody waited with

static int change(void) {
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  int error = madvise(start, PAGE, MADV_DONTNEED) == 0 ? 0 : errno;
  clock_gettime(CLOCK_MONOTONIC, &after);
  unheard += (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 <
             WAIT_MS / 2;
  return error;
}

// A change is told whether or not there was memory for waiting until it is heard.
static void changes_are_told(void) {
  struct adverb_change told;
  bool failed = true;
  int error;
  begin();
  monitor = open_adverb();
  expect(begin_monitor() == 0 && watch() == 0, "watch: %s", strerror(errno));
  for (unsigned n = 1; failed; n++) {
    *start = 1;
    failed = fails_at(n, change, &error);
    expect(error == 0, "with its allocation %u failing: %s", n, strerror(error));
    expect(read(monitor, &told, sizeof told) == sizeof told && told.kind == ADVERB_CHANGE_CLEARED &&
               told.start <= (uintptr_t)start,
           "with its allocation %u failing: nothing is told", n);
  }
  expect(unheard > 0, "all have waited");
  note("%d went on at once", unheard);
}

int main(int count, char** words) {
  choose(count, words);
  run("without memory: opening the device", files);
  run("without memory: creating a region", regions);
  run("without memory: building a view", views_are_built);
  run("without memory: building the second view", second_views_are_built);
  run("without memory: mapping a state table", tables_are_mapped);
  run("without memory: fault-in", pages_are_brought_in);
  run("without memory: showing what is present", pages_are_shown);
  run("without memory: a device attaches", devices_attach);
  run("without memory: a device is asked for beforehand", devices_are_asked_for);
  run("without memory: beginning a monitor", monitors);
  run("without memory: watching a range", ranges_are_watched);
  run("without memory: a change is told, and nobody waits", changes_are_told);
  return verdict();
}
