// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How pages come: what fault-in shows, and what comes back without it.
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
  for (int i = 0; i < 500 && !resident(&image, 0, 5 * PAGE); i++)
    usleep(10000);
  expect(device_word(&image, 5 * PAGE) == 6, "it does not come back");
  expect(query(image.adverb, image.region).remaps >= PAGES, "%llu re-mapped",
         (unsigned long long)query(image.adverb, image.region).remaps);
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

int main(int count, char** words) {
  choose(count, words);
  run("a page that leaves during its fault-in is not shown", left_meanwhile);
  run("pages that were invalidated but stayed come back by themselves", worker_brings_back);
  run("fault-in of what is resident tells reclaim that it is in use", use_is_told);
  return verdict();
}
