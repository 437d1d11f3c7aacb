// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Life of regions: creation, building, fault-in, queries, limits, and all the ways they end.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"

static void version(void) {
  struct adverb_version version = {0};
  expect(ioctl(open_adverb(), ADVERB_IOC_VERSION, &version) == 0, "%s", strerror(errno));
  expect(version.module == ADVERB_MODULE_VERSION && version.minimum_library <= version.module,
         "module %u", version.module);
}

// A library of the first version is told so by the numbers it asks for first, and if it does not
// listen no call of its own makes it a region, or brings anything in.
static void first_version_is_refused(void) {
  struct {
    uint64_t start, length;
    uint32_t flags, region;
  } create_before = {.start = (uintptr_t)memory(PAGE), .length = PAGE};
  struct {
    uint64_t start, length;
    uint32_t region, flags;
    uint64_t done;
  } fault_in_before = {.start = create_before.start, .length = PAGE, .region = 1};
  struct adverb_version version = {0};
  int adverb = open_adverb();
  expect(ioctl(adverb, ADVERB_IOC_VERSION, &version) == 0, "%s", strerror(errno));
  expect(version.minimum_library > 1, "it would go on");
  expect(ioctl(adverb, _IOWR('A', 0x81, create_before), &create_before) != 0 && errno == ENOTTY,
         "it has a region");
  create(adverb, (void*)(uintptr_t)create_before.start, PAGE);
  expect(ioctl(adverb, _IOWR('A', 0x84, fault_in_before), &fault_in_before) != 0 && errno == ENOTTY,
         "it brings in a page");
}

// What a structure has grown by is for newer modules.
static void longer_structures(void) {
  struct {
    struct adverb_query query;
    char more[8];
  } argument = {.query = {.region = 1}};
  int adverb = open_adverb();
  create(adverb, memory(PAGE), PAGE);
  expect(ioctl(adverb, _IOC(_IOC_READ | _IOC_WRITE, 'A', 0x85, sizeof argument.query - 8),
               &argument) != 0 &&
             errno == ENOTTY,
         "one that never was");
  expect(ioctl(adverb, _IOC(_IOC_READ | _IOC_WRITE, 'A', 0x85, sizeof argument), &argument) != 0 &&
             errno == ENOTTY,
         "a longer one");
  expect(query_errno(adverb, 1) == 0, "the right one");
}

static void absent_reads_pattern(void) {
  struct image image;
  uint64_t word;
  make_image(&image, SOFT, memory(64 * PAGE), 64 * PAGE);
  fill(image.start, image.length, 1);
  for (size_t page = 0; page < 64; page++)
    expect(reads_pattern(&image, page * PAGE + 8 * page, &word), "page %zu reads %#llx", page,
           (unsigned long long)word);
}

static void fault_in_shows_bytes(void) {
  struct image image;
  uint64_t word;
  make_image(&image, SOFT, memory(64 * PAGE), 64 * PAGE);
  fill(image.start, image.length, 100);
  fault_in(image.adverb, image.region, image.start + 3 * PAGE, 20 * PAGE, false);
  for (size_t page = 0; page < 64; page++) {
    bool in = page >= 3 && page < 23;
    expect(resident(&image, 0, page * PAGE) == in, "page %zu", page);
    if (in)
      expect(device_word(&image, page * PAGE) == 100 + page, "page %zu", page);
    else
      expect(reads_pattern(&image, page * PAGE, &word), "page %zu", page);
    expect(!resident(&image, 1, page * PAGE), "page %zu is in the write view", page);
  }
  expect(query(image.adverb, image.region).resident[0] == 20, "%llu resident",
         (unsigned long long)query(image.adverb, image.region).resident[0]);
  *(uint64_t*)(image.start + 5 * PAGE) = 77;
  expect(device_word(&image, 5 * PAGE) == 77, "the device reads a copy");
}

static void writes_land_or_park(void) {
  struct image image;
  uint64_t word;
  make_image(&image, SOFT, memory(64 * PAGE), 64 * PAGE);
  fill(image.start, image.length, 1);
  device_store(&image, 7 * PAGE, 0xdead);
  expect(*(uint64_t*)(image.start + 7 * PAGE) == 8, "a write to an absent page landed");
  expect(reads_pattern(&image, 7 * PAGE, &word), "a lost write destroyed the pattern");
  fault_in(image.adverb, image.region, image.start + 7 * PAGE, PAGE, true);
  device_store(&image, 7 * PAGE, 0xbeef);
  expect(*(uint64_t*)(image.start + 7 * PAGE) == 0xbeef, "a write to a resident page was lost");
  expect(device_word(&image, 7 * PAGE) == 0xbeef, "the read view sees another page");
}

static void read_view_refuses_writes(void) {
  struct image image;
  make_image(&image, SOFT, memory(PAGE), PAGE);
  struct adverb_test_move move = {
      .slot = 0, .write = 1, .length = 8, .data = (uintptr_t)image.start};
  expect(ioctl(image.device, ADVERB_TEST_MOVE, &move) != 0 && errno == EACCES, "errno %d", errno);
}

// Of each length the fastest of 18: what interrupts a creation, or the emulator, makes single ones
// slower by any amount.
static void creation_is_constant(void) {
  int adverb = open_adverb();
  struct timespec a, b;
  double fastest[2] = {1e9, 1e9};
  for (int i = 0; i < 40; i++) {
    size_t length = i & 1 ? 1UL << 40 : 1UL << 20;
    clock_gettime(CLOCK_MONOTONIC, &a);
    uint32_t region = create(adverb, (void*)0x10000000000, length);
    clock_gettime(CLOCK_MONOTONIC, &b);
    expect(destroy_errno(adverb, region) == 0, "destroy");
    if (i < 4)
      continue;
    double took = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) / 1e3;
    if (took < fastest[i & 1])
      fastest[i & 1] = took;
  }
  expect(fastest[1] < 5 * fastest[0] + 50, "1 MiB %.0f us, 1 TiB %.0f us", fastest[0], fastest[1]);
}

static void nothing_is_pinned(void) {
  struct image image;
  long before = status_kib("VmPin");
  make_image(&image, SOFT, memory(32 * MIB), 32 * MIB);
  fault_in(image.adverb, image.region, image.start, image.length, true);
  expect(query(image.adverb, image.region).resident[1] > 32 * MIB / PAGE / 2, "all resident");
  expect(status_kib("VmPin") == before, "VmPin is %ld KiB", status_kib("VmPin"));
}

static void child_has_nothing(void) {
  struct image image;
  make_image(&image, SOFT, memory(16 * PAGE), 16 * PAGE);
  int status;
  pid_t child = fork();
  if (child == 0) {
    struct adverb_build build;
    unsigned char in_core;
    if (fault_in_errno(image.adverb, image.region, image.start, PAGE, false, NULL) != EPERM)
      _exit(1);
    if (destroy_errno(image.adverb, image.region) != EPERM)
      _exit(2);
    if (build_errno(image.adverb, image.region, image.start, 0, &build) != EPERM)
      _exit(3);
    if (query_errno(image.adverb, image.region) != EPERM)
      _exit(4);
    if (mincore((void*)image.words[0], PAGE, &in_core) == 0 || errno != ENOMEM)
      _exit(5);
    if (mmap(NULL, PAGE, PROT_READ, MAP_SHARED, image.adverb, (off_t)image.view[0].table_offset) !=
        MAP_FAILED)
      _exit(6);
    _exit(0);
  }
  waitpid(child, &status, 0);
  expect(status == 0, "step %d", WEXITSTATUS(status));
}

static void destroy_parks(void) {
  struct image image;
  uint64_t word;
  make_image(&image, SOFT, memory(16 * PAGE), 16 * PAGE);
  fill(image.start, image.length, 1);
  fault_in(image.adverb, image.region, image.start, image.length, true);
  expect(device_word(&image, 0) == 1, "before");
  expect(destroy_errno(image.adverb, image.region) == 0, "destroy");
  expect(reads_pattern(&image, 0, &word), "the device still reads memory: %#llx",
         (unsigned long long)word);
  device_store(&image, 0, 0xbad);
  expect(*(uint64_t*)image.start == 1, "the device still writes memory");
  expect(destroy_errno(image.adverb, image.region) == ENOENT, "twice");
  expect(query_errno(image.adverb, image.region) == ENOENT, "query of what is gone");
}

// A device held by another process outlives the owner, by exit, kill or exec, and reads the
// pattern.
static void outlive(void (*end)(void)) {
  int ends[2];
  expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  int device = open(SOFT, O_RDWR);
  char go;
  expect(device >= 0, "device");
  pid_t child = fork();
  if (child == 0) {
    struct image image;
    make_image(&image, SOFT, memory(16 * PAGE), 16 * PAGE);
    fill(image.start, image.length, 1);
    fault_in(image.adverb, image.region, image.start, image.length, true);
    struct adverb_test_import import = {.slot = 0, .fd = image.view[0].fd};
    expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
    expect(write(ends[1], image.pattern, 8) == 8, "pattern");
    expect(read(ends[1], &go, 1) == 1, "go");
    end();
    _exit(1);
  }
  struct image other = {.device = device};
  expect(read(ends[0], other.pattern, 8) == 8, "the owner died early");
  expect(device_word(&other, 0) == 1, "before");
  expect(write(ends[0], "g", 1) == 1, "go");
  int status;
  uint64_t word;
  waitpid(child, &status, 0);
  expect(reads_pattern(&other, 0, &word), "%#llx", (unsigned long long)word);
}

static void end_by_exit(void) {
  _exit(0);
}
static void end_by_kill(void) {
  kill(getpid(), SIGKILL);
}
static void end_by_exec(void) {
  execl("/bin/true", "true", (char*)NULL);
}
static void exit_parks(void) {
  outlive(end_by_exit);
}
static void kill_parks(void) {
  outlive(end_by_kill);
}
static void exec_parks(void) {
  outlive(end_by_exec);
}

static void inherited_file_does_nothing(void) {
  int adverb = open_adverb();
  char* start = memory(PAGE);
  uint32_t region = create(adverb, start, PAGE);
  fcntl(adverb, F_SETFD, 0);
  char number[16], text[64];
  // After exec the numbers are the same, the address space is not.
  number[0] = (char)('0' + adverb);
  number[1] = 0;
  text[0] = (char)('0' + region);
  text[1] = 0;
  execl("/proc/self/exe", "region", "--after-exec", number, text, (char*)NULL);
  fail("exec: %s", strerror(errno));
}

static int after_exec(int adverb, uint32_t region) {
  struct adverb_build build;
  if (query_errno(adverb, region) != EPERM)
    return 1;
  return build_errno(adverb, region, NULL, 0, &build) == EPERM ? 0 : 2;
}

static void holes_and_rights(void) {
  struct image image;
  size_t done;
  char* start = memory(16 * PAGE);
  make_image(&image, SOFT, start, 16 * PAGE);
  munmap(start + 4 * PAGE, PAGE);
  expect(fault_in_errno(image.adverb, image.region, start, 16 * PAGE, false, &done) == EFAULT,
         "a hole");
  expect(done == 4 * PAGE, "%zu bytes before the hole", done);
  mprotect(start + 8 * PAGE, PAGE, PROT_READ);
  expect(fault_in_errno(image.adverb, image.region, start + 8 * PAGE, PAGE, true, NULL) == EFAULT,
         "read-only");
  fault_in(image.adverb, image.region, start + 8 * PAGE, PAGE, false);
  mprotect(start + 9 * PAGE, PAGE, PROT_NONE);
  expect(fault_in_errno(image.adverb, image.region, start + 9 * PAGE, PAGE, false, NULL) == EFAULT,
         "no access");
  // What is mapped later at the same address belongs to the region.
  expect(mmap(start + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED,
         "map");
  fault_in(image.adverb, image.region, start + 4 * PAGE, PAGE, true);
}

static void two_regions_one_memory(void) {
  struct image a, b;
  char* start = memory(16 * PAGE);
  make_image(&a, SOFT, start, 16 * PAGE);
  make_image(&b, SOFT, start + 4 * PAGE, 8 * PAGE);
  fill(start, 16 * PAGE, 1);
  fault_in(a.adverb, a.region, start, 16 * PAGE, true);
  fault_in(b.adverb, b.region, start + 4 * PAGE, 8 * PAGE, true);
  expect(memcmp(a.pattern, b.pattern, PAGE) != 0, "regions share a pattern");
  device_store(&b, 0, 42);
  expect(device_word(&a, 4 * PAGE) == 42, "one memory");
  drop_image(&a);
  expect(device_word(&b, 0) == 42, "the other stays");
}

// One that wants pages, and to be told when they move, would break on a range that has none and
// stays.
static void static_importers_are_refused(void) {
  int adverb = open_adverb(), device = open(SOFT, O_RDWR);
  char* start = memory(PAGE);
  uint32_t region = create(adverb, start, PAGE);
  struct adverb_build build;
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  struct adverb_test_import import = {.fd = build.fd};
  expect(ioctl(device, ADVERB_TEST_ATTACH_STATIC, &import) != 0 && errno == EOPNOTSUPP, "errno %d",
         errno);
  struct adverb_query told = query(adverb, region);
  expect(told.refused == 1, "not counted");
  expect(strstr(told.reason, "moves"), "the reason told is \"%s\"", told.reason);
}

// Keeps a region, with 16 of its 64 pages in the read view, until its input ends: for tests of what
// others see of it.
static int hold(void) {
  struct adverb_build build;
  int adverb = open_adverb();
  char *start = memory(64 * PAGE), byte;
  uint32_t region = create(adverb, start, 64 * PAGE);
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  fault_in(adverb, region, start, 16 * PAGE, false);
  printf("region %u\n", region);
  fflush(stdout);
  return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}

int main(int count, char** words) {
  if (count == 2 && strcmp(words[1], "--hold") == 0)
    return hold();
  if (count == 4 && strcmp(words[1], "--after-exec") == 0)
    return after_exec(words[2][0] - '0', (uint32_t)(words[3][0] - '0'));
  choose(count, words);
  run("the version ioctl answers", version);
  run("a library of the first version is refused", first_version_is_refused);
  run("structures have one length in this version", longer_structures);
  run("an absent page reads as the region's pattern", absent_reads_pattern);
  run("fault-in shows the page's own bytes, and only of what was asked for", fault_in_shows_bytes);
  run("a device's write lands in a resident page, else nowhere", writes_land_or_park);
  run("a read view refuses writes", read_view_refuses_writes);
  run_timed("creation takes the same time for 1 MiB and 1 TiB", creation_is_constant);
  run("a fully resident region pins nothing", nothing_is_pinned);
  run("a forked child can do nothing with the parent's region", child_has_nothing);
  run("destroy parks every page", destroy_parks);
  run("exit parks every page of a device that outlives the owner", exit_parks);
  run("SIGKILL parks every page", kill_parks);
  run("exec parks every page", exec_parks);
  run("a descriptor inherited over exec does nothing", inherited_file_does_nothing);
  run("fault-in stops at holes and missing rights and says how far it came", holes_and_rights);
  run("two regions over the same memory see the same pages", two_regions_one_memory);
  run("importers that cannot be told of moves are refused", static_importers_are_refused);
  return verdict();
}
