// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One step at a time through the emulated IOMMU, with QEMU's edu device.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define LENGTH (64 * PAGE)

static struct image image;

static void directed(void) {
  uint64_t word;
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  expect((image.address[0] ^ (uintptr_t)image.start) % (2 * MIB) == 0, "IOVA %#llx of VA %p",
         (unsigned long long)image.address[0], image.start);
  fill(image.start, LENGTH, 1);
  expect(reads_pattern(&image, 5 * PAGE + 64, &word), "absent reads %#llx",
         (unsigned long long)word);
  device_store(&image, 5 * PAGE, 0xdead);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 6, "a write to an absent page landed");
  fault_in(image.adverb, image.region, image.start + 5 * PAGE, PAGE, true);
  expect(device_word(&image, 5 * PAGE) == 6, "after fault-in");
  expect(reads_pattern(&image, 6 * PAGE, &word), "the neighbour came along");
  device_store(&image, 5 * PAGE, 0xbeef);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 0xbeef, "a write to a resident page was lost");
  madvise(image.start + 5 * PAGE, PAGE, MADV_DONTNEED);
  expect(reads_pattern(&image, 5 * PAGE, &word), "left, and reads %#llx", (unsigned long long)word);
  fault_in(image.adverb, image.region, image.start + 5 * PAGE, PAGE, true);
  *(uint64_t*)(image.start + 5 * PAGE) = 99;
  expect(device_word(&image, 5 * PAGE) == 99, "the new page");
  note("IOVA %#llx", (unsigned long long)image.address[0]);
}

// The device has just used the old translation: only the sync makes it forget.
static void forgets(void) {
  uint64_t word;
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  expect(device_word(&image, 5 * PAGE) == 6, "resident");
  munmap(image.start + 5 * PAGE, PAGE);
  expect(reads_pattern(&image, 5 * PAGE, &word), "the device reads %#llx of a page that is gone",
         (unsigned long long)word);
}

// What was resident before the device came is in its view from the start.
static void comes_late(void) {
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  struct adverb_test_import import = {.slot = 0, .fd = -1};
  expect(ioctl(image.device, ADVERB_TEST_IMPORT, &import) == 0, "letting go");
  import.fd = image.view[0].fd;
  expect(ioctl(image.device, ADVERB_TEST_IMPORT, &import) == 0, "taking again");
  expect(device_word(&image, 7 * PAGE) == 8, "resident");
}

static void owner_dies(void) {
  int device = open(EDU, O_RDWR), ends[2], status;
  struct image other = {.device = device};
  uint64_t word;
  expect(device >= 0 && pipe(ends) == 0, "%s", strerror(errno));
  pid_t child = fork();
  if (child == 0) {
    make_image(&image, EDU, memory(LENGTH), LENGTH);
    fill(image.start, LENGTH, 1);
    fault_in(image.adverb, image.region, image.start, LENGTH, true);
    expect(device_word(&image, 0) == 1, "before");
    if (write(ends[1], image.pattern, 8) != 8)
      _exit(1);
    abort();
  }
  expect(read(ends[0], other.pattern, 8) == 8, "the owner died early");
  waitpid(child, &status, 0);
  expect(reads_pattern(&other, 0, &word), "%#llx", (unsigned long long)word);
}

static void shares_a_range(void) {
  struct adverb_build again;
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  expect(build_errno(image.adverb, image.region, image.start, 0, &again) == 0, "again");
  struct adverb_test_import import = {.slot = 1, .fd = again.fd};
  expect(ioctl(image.device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  expect(import.address == image.address[0], "two ranges for one view in one domain");
}

// Each device has a range of its own, and both follow.
static void two_devices(void) {
  uint64_t word;
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  int nic = open("/dev/adverb_test_nic", O_RDWR);
  static unsigned char frame[ADVERB_TEST_FRAME];
  struct adverb_test_import import = {.slot = 0, .fd = image.view[0].fd};
  struct adverb_test_frames frames = {
      .read = {.count = 1, .offset = 5 * PAGE, .data = (uintptr_t)frame}};
  if (nic < 0)
    skip("no second device: %s", strerror(errno));
  expect(ioctl(nic, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  expect(query(image.adverb, image.region).attachments == 3, "attachments");
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  expect(ioctl(nic, ADVERB_TEST_FRAMES, &frames) == 0 && *(uint64_t*)frame == 6,
         "the second reads");
  expect(device_word(&image, 5 * PAGE) == 6, "the first reads");
  munmap(image.start + 5 * PAGE, PAGE);
  expect(ioctl(nic, ADVERB_TEST_FRAMES, &frames) == 0, "%s", strerror(errno));
  expect(memcmp(frame, image.pattern, sizeof frame) == 0, "the second still reads the page");
  expect(reads_pattern(&image, 5 * PAGE, &word), "the first still reads the page");
  close(nic);
  expect(device_word(&image, 6 * PAGE) == 7, "one lets go, the other stays");
}

static void unload_in_use(void) {
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  close(image.adverb);
  munmap((void*)image.words[0], image.view[0].table_length);
  munmap((void*)image.words[1], image.view[1].table_length);
  // Only the device holds the region now.
  expect(system("rmmod adverb 2>/dev/null") != 0, "it went");
  uint64_t word;
  expect(reads_pattern(&image, 0, &word), "what the device reads");
}

static void refused(void) {
  int adverb = open_adverb();
  char* start = memory(LENGTH);
  uint32_t region = create(adverb, start, LENGTH);
  struct adverb_build build;
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  struct adverb_test_import import = {.fd = build.fd};
  int device = open(EDU, O_RDWR);
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) != 0 && errno == EOPNOTSUPP, "errno %d", errno);
  struct adverb_query told = query(adverb, region);
  expect(told.refused == 1, "not counted");
  expect(strstr(told.reason, "iommu.passthrough=0"), "the reason told is \"%s\"", told.reason);
}

// What a device has let go is out of its reach before the pages it could reach are freed. By the
// kernel alone the IOMMU would learn of it some milliseconds later.
static void let_go(void) {
  static unsigned char frame[ADVERB_TEST_FRAME];
  struct adverb_test_frames frames = {.read = {.count = 1, .data = (uintptr_t)frame}};
  make_image(&image, "/dev/adverb_test_nic", memory(LENGTH), LENGTH);
  expect(ioctl(image.device, ADVERB_TEST_FRAMES, &frames) == 0 &&
             memcmp(frame, image.pattern, sizeof frame) == 0,
         "the device reads the pattern at first");
  // Only the device holds the region now, and its parking pages.
  close(image.adverb);
  close(image.view[0].fd);
  for (int view = 0; view < 2; view++)
    munmap((void*)image.words[view], image.view[view].table_length);
  memset(frame, 0, sizeof frame);
  expect(ioctl(image.device, ADVERB_TEST_LAST_FRAMES, &frames) == 0, "%s", strerror(errno));
  expect(frames.lost || memcmp(frame, image.pattern, sizeof frame) != 0,
         "the device still reads the parking page");
}

int main(int count, char** words) {
  choose(count, words);
  if (count > 1 && strcmp(words[1], "identity") == 0) {
    run("identity: a device whose addresses are not translated is refused", refused);
    return verdict();
  }
  if (count > 1 && strcmp(words[1], "let go") == 0) {
    run("what a device has let go is out of its reach at once", let_go);
    return verdict();
  }
  run("real bytes of a resident page, pattern of an absent one, writes land or park", directed);
  run("a device forgets the old translation before the page is reused", forgets);
  run("what is resident before a device attaches is in its view", comes_late);
  run("a device that outlives the owner reads the pattern", owner_dies);
  run("attachments of one domain share a range", shares_a_range);
  run("two devices reach one region, each its own way", two_devices);
  run("the module cannot be unloaded while a device has a region", unload_in_use);
  return verdict();
}
