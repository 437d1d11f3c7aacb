// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Extents and views of a region: where they begin and end, what each of them shows and tells, and
// how they are given back.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"

static uint32_t create_with(int adverb, const void* start, size_t length, unsigned flags,
                            unsigned extent_shift, int* error) {
  struct adverb_region_create argument = {
      .start = (uintptr_t)start, .length = length, .flags = flags, .extent_shift = extent_shift};
  *error = ioctl(adverb, ADVERB_IOC_REGION_CREATE, &argument) == 0 ? 0 : errno;
  return argument.region;
}

// Small extents: each is built, shown and given back without the others.
static void small_extents(void) {
  const size_t extent = 2 * MIB, length = 3 * extent;
  int adverb = open_adverb(), error;
  char* whole = memory(4 * extent);
  // From the middle of one extent to the middle of another.
  char* first = (char*)(((uintptr_t)whole + extent - 1) & ~(extent - 1));
  char* start = first + 5 * PAGE;
  struct adverb_query_extent seen;
  struct adverb_build build[3];
  for (unsigned shift = 1; shift < 40; shift++) {
    uint32_t region = create_with(adverb, start, length, 0, shift, &error);
    expect(error == (shift < 21 || shift > 30 ? EINVAL : 0), "2^%u bytes: %s", shift,
           strerror(error));
    expect(error != 0 || destroy_errno(adverb, region) == 0, "destroy");
  }
  uint32_t region = create_with(adverb, start, length - 10 * PAGE, 0, 21, &error);
  expect(error == 0, "%s", strerror(error));
  expect(query_extent_errno(adverb, region, NULL, &seen) == ENOENT, "nothing is built");
  memset(whole, 7, 4 * extent);
  for (int i = 2; i >= 0; i -= 2) { // not the one between
    expect(build_errno(adverb, region, start + (size_t)i * extent, 0, &build[i]) == 0, "build");
    uintptr_t from = i == 0 ? (uintptr_t)start : (uintptr_t)first + (size_t)i * extent;
    uintptr_t to = i == 2 ? (uintptr_t)start + length - 10 * PAGE : (uintptr_t)first + extent;
    expect(build[i].start == from && build[i].length == to - from,
           "extent %d is %llu bytes from %#llx", i, (unsigned long long)build[i].length,
           (unsigned long long)build[i].start);
  }
  fault_in(adverb, region, start, PAGE, false);
  size_t done;
  expect(fault_in_errno(adverb, region, start, length - 10 * PAGE, false, &done) == ENXIO &&
             done == extent - 5 * PAGE,
         "what is not built was brought in: %zu bytes", done);
  fault_in(adverb, region, first + 2 * extent, 3 * PAGE, false);
  // The table page of each extent, its words' and its slots'.
  expect(query_extent_errno(adverb, region, NULL, &seen) == 0 && seen.start == (uintptr_t)start &&
             seen.resident[0] == extent / PAGE - 5 && seen.resident[1] == 0 && seen.views == 1 &&
             seen.mappings == 0 && seen.charged_pages == 3,
         "the first: %llu resident, %llu charged", (unsigned long long)seen.resident[0],
         (unsigned long long)seen.charged_pages);
  expect(query_extent_errno(adverb, region, (void*)(uintptr_t)(seen.start + seen.length), &seen) ==
                 0 &&
             seen.start == (uintptr_t)first + 2 * extent && seen.resident[0] == 3,
         "the next: %llu resident from %#llx", (unsigned long long)seen.resident[0],
         (unsigned long long)seen.start);
  expect(query_extent_errno(adverb, region, (void*)(uintptr_t)(seen.start + seen.length), &seen) ==
             ENOENT,
         "and no other");
  expect(query_extent_errno(adverb, region, (void*)UINTPTR_MAX, &seen) == ENOENT, "far away");
  struct adverb_query all = query(adverb, region);
  expect(all.extents == 2 && all.charged_pages == 2 + 3 + 3, "%u extents, %llu pages", all.extents,
         (unsigned long long)all.charged_pages);
  close(build[0].fd);
  expect(give_back_errno(adverb, region, start, 0) == 0, "give back");
  expect(query_extent_errno(adverb, region, NULL, &seen) == 0 &&
             seen.start == (uintptr_t)first + 2 * extent && seen.resident[0] == 3,
         "the other stays");
}

// Without write views there is nothing to lose writes in, and nothing to build.
static void read_only_regions(void) {
  int adverb = open_adverb(), error;
  char* start = memory(4 * PAGE);
  struct adverb_build build;
  uint32_t region = create_with(adverb, start, 4 * PAGE, ADVERB_REGION_READ_ONLY, 0, &error);
  expect(error == 0, "%s", strerror(error));
  expect(query(adverb, region).charged_pages == 1, "%llu pages are charged",
         (unsigned long long)query(adverb, region).charged_pages);
  expect(build_errno(adverb, region, start, ADVERB_VIEW_WRITE, &build) == EACCES, "a write view");
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "the read view");
  expect(fault_in_errno(adverb, region, start, PAGE, true, NULL) == ENXIO, "to write");
  expect(bring_errno(adverb, region, start, PAGE, ADVERB_FAULT_MARK | ADVERB_FAULT_WRITE, NULL) ==
             ENXIO,
         "to mark");
  expect(bring_errno(adverb, region, start, PAGE, ADVERB_FAULT_PRESENT | ADVERB_FAULT_WRITE,
                     NULL) == ENXIO,
         "to show");
  fault_in(adverb, region, start, 4 * PAGE, false);
  expect(query(adverb, region).resident[0] == 4, "pages");
}

static void odd_bounds(void) {
  struct image image;
  uint32_t region;
  char* start = memory(40 * PAGE);
  make_image(&image, SOFT, start + 5 * PAGE, 30 * PAGE);
  fault_in(image.adverb, image.region, image.start, image.length, true);
  for (size_t page = 0; page < 30; page++)
    expect(resident(&image, 1, page * PAGE), "page %zu", page);
  region = create(image.adverb, start + 100, 5000);
  struct adverb_build build;
  expect(build_errno(image.adverb, region, start + 4096, 0, &build) == 0, "build");
  expect(build.start == (uintptr_t)start && build.length == 2 * PAGE, "%llu bytes",
         (unsigned long long)build.length);
  fault_in(image.adverb, region, start + 100, 5000, false);
  expect(fault_in_errno(image.adverb, region, start + 99, 1, false, NULL) == ERANGE,
         "before the start");
  expect(fault_in_errno(image.adverb, region, start + 5099, 2, false, NULL) == ERANGE,
         "behind the end");
}

static void extents_across_gib(void) {
  int adverb = open_adverb();
  char* start = mmap(NULL, 3UL << 30, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* border = (char*)(((uintptr_t)start + (2UL << 30) - 1) & ~((1UL << 30) - 1));
  uint32_t region = create(adverb, start, 3UL << 30);
  struct adverb_build low, high;
  expect(fault_in_errno(adverb, region, border - PAGE, 2 * PAGE, false, NULL) == ENXIO,
         "nothing is built");
  expect(build_errno(adverb, region, border - 1, 0, &low) == 0, "low");
  expect(fault_in_errno(adverb, region, border - PAGE, 2 * PAGE, false, NULL) == ENXIO,
         "half is built");
  expect(build_errno(adverb, region, border, 0, &high) == 0, "high");
  expect(low.start + low.length == (uintptr_t)border && high.start == (uintptr_t)border,
         "they meet at the border");
  fault_in(adverb, region, border - PAGE, 2 * PAGE, false);
  expect(query(adverb, region).resident[0] == 2, "both pages");
}

// A view can be given back when nobody uses it; the extent goes with its last.
static void views_are_given_back(void) {
  struct image image;
  struct adverb_build build;
  uint64_t word;
  make_image(&image, SOFT, memory(64 * PAGE), 64 * PAGE);
  fill(image.start, image.length, 1);
  fault_in(image.adverb, image.region, image.start, image.length, true);
  device_store(&image, 5 * PAGE, 77);
  close(image.device);
  for (int view = 1; view >= 0; view--) {
    expect(give_back_errno(image.adverb, image.region, image.start, view) == EBUSY,
           "while there is a dma-buf of view %d", view);
    close(image.view[view].fd);
    expect(give_back_errno(image.adverb, image.region, image.start, view) == EBUSY,
           "while the table of view %d is mapped", view);
    munmap((void*)image.words[view], image.view[view].table_length);
    expect(give_back_errno(image.adverb, image.region, image.start, view) == 0, "view %d", view);
    expect(give_back_errno(image.adverb, image.region, image.start, view) == ENXIO, "twice");
    expect(fault_in_errno(image.adverb, image.region, image.start, PAGE, view == 1, NULL) == ENXIO,
           "pages come into view %d, which is gone", view);
    expect(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, image.adverb,
                (off_t)image.view[view].table_offset) == MAP_FAILED,
           "the table of view %d is there", view);
    expect(query(image.adverb, image.region).resident[view] == 0, "pages stay in view %d", view);
    expect(query(image.adverb, image.region).extents == (unsigned)view, "%u extents",
           query(image.adverb, image.region).extents);
    if (view == 1) // the other one goes on
      fault_in(image.adverb, image.region, image.start, image.length, false);
  }
  // But the parking pages nothing is charged, nor is anything left of what was there.
  expect(query(image.adverb, image.region).charged_pages == 2, "%llu pages stay charged",
         (unsigned long long)query(image.adverb, image.region).charged_pages);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 77, "the device's bytes were lost");
  expect(build_errno(image.adverb, image.region, image.start, 0, &build) == 0, "building it again");
  struct adverb_test_import import = {.slot = 0, .fd = build.fd};
  image.device = open(SOFT, O_RDWR);
  expect(ioctl(image.device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  expect(reads_pattern(&image, 5 * PAGE, &word), "it shows what nobody has asked for");
  fault_in(image.adverb, image.region, image.start, image.length, false);
  expect(device_word(&image, 5 * PAGE) == 77, "page 5");
}

static void building_again(void) {
  struct image image;
  struct adverb_build again;
  make_image(&image, SOFT, memory(4 * PAGE), 4 * PAGE);
  expect(build_errno(image.adverb, image.region, image.start + 2 * PAGE, 0, &again) == 0, "again");
  expect(again.table_offset == image.view[0].table_offset && again.fd != image.view[0].fd,
         "another descriptor of the same view");
  expect(fcntl(again.fd, F_GETFD) & FD_CLOEXEC, "close-on-exec");
  expect(lseek(again.fd, 0, SEEK_END) == (off_t)(4 * PAGE), "size");
}

int main(int count, char** words) {
  choose(count, words);
  run("regions may begin and end anywhere", odd_bounds);
  run("extents meet at GiB borders and are built one by one", extents_across_gib);
  run("views and extents are given back, when nobody uses them", views_are_given_back);
  run("small extents stand for themselves", small_extents);
  run("a region can be without write views", read_only_regions);
  run("building again gives another descriptor of the same view", building_again);
  return verdict();
}
