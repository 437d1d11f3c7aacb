// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How pages come: what fault-in shows, and what comes back without it.
#include <errno.h>
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define PAGES 64
#define LENGTH (PAGES * PAGE)

static struct image image;

static void resident_image(void) {
  make_image(&image, SOFT, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
}

static void* fault_in_two(void* argument) {
  fault_in(image.adverb, image.region, image.start, 2 * PAGE, false);
  return argument;
}

// Fault-in has page 0 and waits for page 1, when page 0 is exchanged: what it has is out of date.
static void left_meanwhile(void) {
  static _Alignas(4096) uint64_t page[512] = {2};
  char* start = memory(LENGTH);
  int fd = userfaults(0);
  struct uffd_msg message;
  struct uffdio_register missing = {.range = {(uintptr_t)start + PAGE, PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
  struct uffdio_copy copy = {.dst = (uintptr_t)start + PAGE, .src = (uintptr_t)page, .len = PAGE};
  pthread_t thread;
  expect(ioctl(fd, UFFDIO_REGISTER, &missing) == 0, "register");
  make_image(&image, SOFT, start, LENGTH);
  *(uint64_t*)start = 1;
  pthread_create(&thread, NULL, fault_in_two, NULL);
  expect(read(fd, &message, sizeof message) == sizeof message, "no fault on page 1");
  expect(madvise(start, PAGE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
  *(uint64_t*)start = 77;
  expect(ioctl(fd, UFFDIO_COPY, &copy) == 0, "copy: %s", strerror(errno));
  pthread_join(thread, NULL);
  expect(device_word(&image, PAGE) == 2, "page 1");
  expect(device_word(&image, 0) == 77, "the device reads %llu of the page that was there before",
         (unsigned long long)device_word(&image, 0));
}

// Invalidated, but still there: it comes back without being asked for.
static void worker_brings_back(void) {
  resident_image();
  expect(mprotect(image.start, LENGTH, PROT_READ) == 0 &&
             mprotect(image.start, LENGTH, PROT_READ | PROT_WRITE) == 0,
         "mprotect");
  for (int i = 0; i < 12000 && !resident(&image, 0, 5 * PAGE); i++)
    usleep(10000);
  expect(device_word(&image, 5 * PAGE) == 6, "it does not come back");
  expect(query(image.adverb, image.region).remaps >= PAGES, "%llu re-mapped",
         (unsigned long long)query(image.adverb, image.region).remaps);
}

// What is there already is shown without bringing in what is not, which for a large heap is most.
static void present_is_shown(void) {
  const size_t length = 64 * MIB, step = MIB;
  char* start = memory(length);
  uint64_t word;
  madvise(start, length, MADV_NOHUGEPAGE);
  make_image(&image, SOFT, start, length);
  for (size_t at = 0; at < length; at += step)
    *(uint64_t*)(start + at) = at + 1;
  // Only to be read: a page of a kind that is not for the write view.
  expect(mprotect(start, PAGE, PROT_READ) == 0, "mprotect");
  long before = status_kib("VmRSS");
  size_t done;
  int error = bring_errno(image.adverb, image.region, start, length,
                          ADVERB_FAULT_PRESENT | ADVERB_FAULT_WRITE, &done);
  expect(error == 0, "%s", strerror(error));
  expect(done == length, "%zu bytes", done);
  expect(status_kib("VmRSS") - before < 1024, "%ld KiB came", status_kib("VmRSS") - before);
  struct adverb_query now = query(image.adverb, image.region);
  expect(now.resident[0] == length / step, "%llu pages in the read view",
         (unsigned long long)now.resident[0]);
  expect(now.resident[1] == length / step - 1, "%llu pages in the write view",
         (unsigned long long)now.resident[1]);
  expect(now.minor == 0 && now.major == 0, "faults");
  for (size_t at = 0; at < length; at += step) {
    expect(device_word(&image, at) == at + 1, "page at %#zx", at);
    expect(reads_pattern(&image, at + PAGE, &word), "the page behind %#zx was not there", at);
  }
  device_store(&image, step, 7);
  expect(*(uint64_t*)(start + step) == 7, "the device's write");
}

// The flags the kernel shows of the page at an address.
static uint64_t page_flags(const char* page) {
  int map = open("/proc/self/pagemap", O_RDONLY), flags = open("/proc/kpageflags", O_RDONLY);
  uint64_t entry = 0, value = 0;
  expect(pread(map, &entry, 8, (off_t)((uintptr_t)page / PAGE * 8)) == 8 && entry >> 63, "pagemap");
  expect(pread(flags, &value, 8, (off_t)((entry & ((1UL << 55) - 1)) * 8)) == 8, "kpageflags");
  close(map);
  close(flags);
  return value;
}

// What only devices use looks idle to reclaim, unless it is told.
static void use_is_told(void) {
  const uint64_t referenced = 1 << 2;
  resident_image();
  expect(madvise(image.start, LENGTH, MADV_COLD) == 0, "MADV_COLD: %s", strerror(errno));
  drain_lists();
  uint64_t enter = query(image.adverb, image.region).enter;
  for (size_t at = 0; at < LENGTH; at += PAGE)
    expect(!(page_flags(image.start + at) & referenced), "page %zu is not cold", at / PAGE);
  fault_in(image.adverb, image.region, image.start, LENGTH / 2, false);
  for (size_t at = 0; at < LENGTH; at += PAGE)
    expect(!(page_flags(image.start + at) & referenced) == (at >= LENGTH / 2), "page %zu is %s",
           at / PAGE, at < LENGTH / 2 ? "still idle" : "said to be in use");
  expect(query(image.adverb, image.region).enter == enter, "pages had left");
}

// The same without bringing anything in, of several places in one call.
static void use_is_told_in_bulk(void) {
  const uint64_t referenced = 1 << 2;
  char* start = memory(2 * LENGTH);
  long before;
  make_image(&image, SOFT, start, 2 * LENGTH);
  fill(start, LENGTH, 1);
  fault_in(image.adverb, image.region, start, LENGTH, true);
  expect(madvise(start, LENGTH, MADV_COLD) == 0, "MADV_COLD: %s", strerror(errno));
  drain_lists();
  before = status_kib("VmRSS");
  struct adverb_range ranges[3] = {
      {.start = (uintptr_t)start + PAGE, .length = PAGE},
      {.start = (uintptr_t)start + 5 * PAGE, .length = 2 * PAGE},
      {.start = (uintptr_t)start + LENGTH - PAGE, .length = LENGTH}, // most of it absent
  };
  struct adverb_fault_in argument = {
      .ranges = (uintptr_t)ranges, .count = 3, .region = image.region, .flags = ADVERB_FAULT_MARK};
  expect(ioctl(image.adverb, ADVERB_IOC_FAULT_IN, &argument) == 0, "%s", strerror(errno));
  expect(argument.tried == 3 && ranges[1].done == 2 * PAGE && ranges[2].done == LENGTH, "done");
  expect(status_kib("VmRSS") - before < 256, "%ld KiB came", status_kib("VmRSS") - before);
  for (size_t page = 0; page < PAGES; page++) {
    bool told = page == 1 || page == 5 || page == 6 || page == PAGES - 1;
    expect(!(page_flags(start + page * PAGE) & referenced) == !told, "page %zu is %s", page,
           told ? "still idle" : "said to be in use");
  }
}

// Of several ranges each stands for itself, and the call tells of the first that failed.
static void ranges_stand_for_themselves(void) {
  char* start = memory(LENGTH);
  uint64_t word;
  make_image(&image, SOFT, start, LENGTH);
  fill(start, LENGTH, 1);
  expect(munmap(start + 8 * PAGE, PAGE) == 0, "munmap");
  struct adverb_range ranges[] = {
      {.start = (uintptr_t)start, .length = PAGE, .done = 9, .error = 9, .reserved = 9},
      {.start = (uintptr_t)start + 6 * PAGE + 100, .length = 4 * PAGE},
      {.start = (uintptr_t)start + LENGTH, .length = PAGE},
      {.start = (uintptr_t)start + 20 * PAGE, .length = 0},
      {.start = (uintptr_t)start + 30 * PAGE, .length = 2 * PAGE},
  };
  struct adverb_fault_in argument = {
      .ranges = (uintptr_t)ranges, .count = 5, .region = image.region};
  expect(ioctl(image.adverb, ADVERB_IOC_FAULT_IN, &argument) != 0 && errno == EFAULT, "%s",
         strerror(errno));
  expect(argument.tried == 5, "%u ranges were tried", argument.tried);
  const struct {
    uint64_t done;
    int error;
  } want[] = {{PAGE, 0}, {2 * PAGE - 100, -EFAULT}, {0, -ERANGE}, {0, -EINVAL}, {2 * PAGE, 0}};
  for (int i = 0; i < 5; i++)
    expect(
        ranges[i].done == want[i].done && ranges[i].error == want[i].error && !ranges[i].reserved,
        "range %d: %llu bytes, error %d", i, (unsigned long long)ranges[i].done, ranges[i].error);
  expect(device_word(&image, 31 * PAGE) == 32, "page 31");
  expect(reads_pattern(&image, 29 * PAGE, &word), "page 29 was not asked for");
  // A list that ends where no memory is: what was tried is told, and done.
  char* edge = memory(2 * PAGE);
  munmap(edge + PAGE, PAGE);
  struct adverb_range* last = (struct adverb_range*)(edge + PAGE) - 1;
  *last = (struct adverb_range){.start = (uintptr_t)start + 40 * PAGE, .length = PAGE};
  argument =
      (struct adverb_fault_in){.ranges = (uintptr_t)last, .count = 2, .region = image.region};
  expect(ioctl(image.adverb, ADVERB_IOC_FAULT_IN, &argument) != 0 && errno == EFAULT, "%s",
         strerror(errno));
  expect(argument.tried == 1 && last->done == PAGE && last->error == 0, "%u ranges were tried",
         argument.tried);
}

// Who does not wait is not kept by a page that only another thread can bring, nor by storage; and
// has at once what is there.
static void nowait_does_not_wait(void) {
  static _Alignas(4096) uint64_t page[512] = {2};
  const unsigned flags = ADVERB_FAULT_NOWAIT | ADVERB_FAULT_WRITE;
  char* start = memory(LENGTH);
  size_t done = 0;
  int fd = userfaults(0), error;
  struct uffdio_register missing = {.range = {(uintptr_t)start + PAGE, PAGE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
  struct uffdio_copy copy = {.dst = (uintptr_t)start + PAGE, .src = (uintptr_t)page, .len = PAGE};
  expect(ioctl(fd, UFFDIO_REGISTER, &missing) == 0, "register");
  make_image(&image, SOFT, start, LENGTH);
  error = bring_errno(image.adverb, image.region, start, 4 * PAGE, flags, &done);
  expect(error == EAGAIN && done == PAGE, "%s after %zu bytes", strerror(error), done);
  expect(ioctl(fd, UFFDIO_COPY, &copy) == 0, "copy: %s", strerror(errno));
  error = bring_errno(image.adverb, image.region, start, 4 * PAGE, flags, &done);
  expect(error == 0 && done == 4 * PAGE, "%s after %zu bytes", strerror(error), done);
  expect(device_word(&image, PAGE) == 2, "page 1");
}

static void nowait_and_storage(void) {
  char* start = memory(LENGTH);
  size_t done = 0;
  int error = 0, again = 0;
  make_image(&image, SOFT, start, LENGTH);
  fill(start, LENGTH, 1);
  expect(madvise(start, LENGTH, MADV_PAGEOUT) == 0, "MADV_PAGEOUT: %s", strerror(errno));
  for (int tries = 0; tries < 1000 && done != LENGTH; tries++) {
    error = bring_errno(image.adverb, image.region, start, LENGTH, ADVERB_FAULT_NOWAIT, &done);
    expect(error == 0 || error == EAGAIN, "%s", strerror(error));
    again += error == EAGAIN;
    if (error == EAGAIN)
      usleep(1000); // for the disk
  }
  expect(done == LENGTH, "%zu bytes after a thousand calls", done);
  note("%d calls would have waited", again);
  for (size_t at = 0; at < LENGTH; at += PAGE)
    expect(device_word(&image, at) == at / PAGE + 1, "page %zu", at / PAGE);
}

// Where each page leaves whenever it has come, fault-in gives up, shows nothing and keeps nothing.
static void gives_up(void) {
  make_image(&image, SOFT, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  struct adverb_range ranges[] = {
      {.start = (uintptr_t)image.start, .length = LENGTH / 2, .done = 9},
      {.start = (uintptr_t)image.start + LENGTH / 2, .length = PAGE, .done = 9}};
  struct adverb_fault_in argument = {
      .ranges = (uintptr_t)ranges, .count = 2, .region = image.region, .flags = ADVERB_FAULT_WRITE};
  expect(ioctl(image.adverb, ADVERB_IOC_FAULT_IN, &argument) != 0 && errno == EAGAIN, "%s",
         strerror(errno));
  expect(argument.tried == 2, "%u ranges were tried", argument.tried);
  for (int i = 0; i < 2; i++)
    expect(ranges[i].done == 0 && ranges[i].error == -EAGAIN, "range %d: %llu bytes, error %d", i,
           (unsigned long long)ranges[i].done, ranges[i].error);
  struct adverb_query now = query(image.adverb, image.region);
  expect(now.resident[0] == 0 && now.resident[1] == 0 && now.enter == 0, "pages are shown");
  expect(now.refused == 2, "%llu refusals are counted", (unsigned long long)now.refused);
  for (size_t at = 0; at < LENGTH; at += PAGE) {
    uint64_t word;
    expect(reads_pattern(&image, at, &word), "page %zu is shown to the device", at / PAGE);
  }
  // A page that somebody has a reference to cannot move to another node.
  void* pages[PAGES];
  int nodes[PAGES], status[PAGES];
  for (int page = 0; page < PAGES; page++)
    pages[page] = image.start + page * PAGE;
  drain_lists();
  expect(syscall(SYS_move_pages, 0, PAGES, pages, NULL, status, 0) == 0, "%s", strerror(errno));
  for (int page = 0; page < PAGES; page++)
    nodes[page] = !status[page];
  expect(syscall(SYS_move_pages, 0, PAGES, pages, nodes, status, MPOL_MF_MOVE) >= 0, "%s",
         strerror(errno));
  for (int page = 0; page < PAGES; page++)
    expect(status[page] == nodes[page], "page %d is kept: %d", page, status[page]);
}

int main(int count, char** words) {
  choose(count, words);
  if (access("/sys/module/adverb/parameters/broken", F_OK) == 0) // by broken.sh
    run("fault-in gives up where pages leave faster than they come", gives_up);
  run("a page that leaves during its fault-in is not shown", left_meanwhile);
  run("pages that were invalidated but stayed come back by themselves", worker_brings_back);
  run("what is in memory is shown without a fault, and nothing else", present_is_shown);
  run("fault-in of what is resident tells reclaim that it is in use", use_is_told);
  run("many places are told of in one call, and nothing is brought in", use_is_told_in_bulk);
  run("each of several ranges stands for itself", ranges_stand_for_themselves);
  run("who does not wait is not kept by a page that somebody has to bring", nowait_does_not_wait);
  run_timed("who does not wait has what was in the swap when it is there", nowait_and_storage);
  return verdict();
}
