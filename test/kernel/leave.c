// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Every way a page can go from under a device: it must be gone for the device before it is gone for
// the program, and what the device wrote must survive.
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define PAGES 64
#define LENGTH (PAGES * PAGE)

static struct image image;

// A region over `start`, filled and resident in both views.
static void resident_image(char* start, size_t length) {
  make_image(&image, SOFT, start, length);
  fill(start, length, 1);
  fault_in(image.adverb, image.region, start, length, true);
  expect(device_word(&image, 5 * PAGE) == 6, "resident at first");
}

// Page 5 has left both views, its neighbours 4 and 6 have not.
static void only_page_5_left(uint64_t before) {
  uint64_t word;
  expect(reads_pattern(&image, 5 * PAGE, &word), "the device reads %#llx",
         (unsigned long long)word);
  expect(!resident(&image, 0, 5 * PAGE) && !resident(&image, 1, 5 * PAGE),
         "the tables say it is there");
  expect(generation(&image, 1, 5 * PAGE) > before, "the generation stands still");
  expect(device_word(&image, 4 * PAGE) == 5 && device_word(&image, 6 * PAGE) == 7,
         "neighbours left");
}

static void unmapped(void) {
  resident_image(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  munmap(image.start + 5 * PAGE, PAGE);
  only_page_5_left(before);
}

static void dontneed(void) {
  resident_image(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  expect(madvise(image.start + 5 * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
  only_page_5_left(before);
  fault_in(image.adverb, image.region, image.start + 5 * PAGE, PAGE, true);
  expect(device_word(&image, 5 * PAGE) == 0, "the device reads what was thrown away");
  device_store(&image, 5 * PAGE, 9);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 9, "the device writes to a page of the past");
}

static void no_access(void) {
  resident_image(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  expect(mprotect(image.start + 5 * PAGE, PAGE, PROT_NONE) == 0, "mprotect");
  only_page_5_left(before);
}

static void read_only(void) {
  resident_image(memory(LENGTH), LENGTH);
  expect(mprotect(image.start, LENGTH, PROT_READ) == 0, "mprotect");
  device_store(&image, 5 * PAGE, 0xbad);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 6, "the device wrote what the program may not");
  fault_in(image.adverb, image.region, image.start, LENGTH, false);
  expect(device_word(&image, 5 * PAGE) == 6, "it may still be read");
}

static void remapped(void) {
  resident_image(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  char* target = memory(PAGE);
  expect(mremap(image.start + 5 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) ==
             target,
         "mremap");
  only_page_5_left(before);
  device_store(&image, 5 * PAGE, 0xbad);
  expect(*(uint64_t*)target == 6, "the device follows the page, not the address");
}

static bool present(const void* address) {
  uint64_t entry = 0;
  int fd = open("/proc/self/pagemap", O_RDONLY);
  if (fd < 0 || pread(fd, &entry, 8, (off_t)((uintptr_t)address / PAGE * 8)) != 8)
    skip("/proc/self/pagemap: %s", strerror(errno));
  close(fd);
  return entry >> 63;
}

// Swapped out and in again with what the device wrote.
static void paged_out(void) {
  resident_image(memory(LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  device_store(&image, 5 * PAGE, 4711);
  if (madvise(image.start + 5 * PAGE, PAGE, MADV_PAGEOUT) != 0)
    skip("MADV_PAGEOUT: %s", strerror(errno));
  for (int i = 0; i < 100 && present(image.start + 5 * PAGE); i++)
    madvise(image.start + 5 * PAGE, PAGE, MADV_PAGEOUT);
  if (present(image.start + 5 * PAGE))
    skip("the page was not paged out (no swap?)");
  only_page_5_left(before);
  fault_in(image.adverb, image.region, image.start + 5 * PAGE, PAGE, false);
  expect(device_word(&image, 5 * PAGE) == 4711, "the device's bytes were lost");
}

// A page freed lazily has a writable, clean PTE: only Leave can know that the device wrote.
static void device_write_to_clean_page(void) {
  resident_image(memory(LENGTH), LENGTH);
  // More than once: reclaim leaves alone what it cannot isolate at the moment.
  for (uint64_t round = 1; round <= 6; round++) {
    expect(madvise(image.start, LENGTH, MADV_FREE) == 0, "MADV_FREE");
    // The worker keeps such pages out of the write view.
    fault_in(image.adverb, image.region, image.start, LENGTH, true);
    for (int page = 0; page < PAGES; page++)
      device_store(&image, page * PAGE, round * 1000 + page);
    drain_lists();
    if (madvise(image.start, LENGTH, MADV_PAGEOUT) != 0)
      skip("MADV_PAGEOUT: %s", strerror(errno));
    for (int page = 0; page < PAGES; page++)
      expect(*(uint64_t*)(image.start + page * PAGE) == round * 1000 + page,
             "page %d was dropped with the device's bytes", page);
  }
}

// The field of the mapping at an address, in KiB.
static long mapping_kib(const void* address, const char* field) {
  char line[256];
  unsigned long start, end;
  bool inside = false;
  long value = -1;
  FILE* file = fopen("/proc/self/smaps", "r");
  while (file && value < 0 && fgets(line, sizeof line, file))
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
      inside = (uintptr_t)address >= start && (uintptr_t)address < end;
    else if (inside && strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
      value = atol(line + strlen(field) + 1);
  if (file)
    fclose(file);
  return value;
}

static void wait_for_worker(size_t offset) {
  for (int i = 0; i < 12000 && !resident(&image, 1, offset); i++)
    usleep(10000);
  expect(resident(&image, 1, offset), "the worker does not come");
}

// What a program frees lazily is there for as long as nobody needs the memory. The worker looks at
// it like at all that was invalidated, and must not make it stay.
static void freed_lazily(void) {
  const size_t length = 8 * MIB, kept = ADVERB_GRANULE_PAGES * PAGE, freed = length - 2 * kept;
  size_t zeros = 0;
  char* start = memory(length);
  madvise(start, length, MADV_NOHUGEPAGE);
  resident_image(start, length);
  expect(madvise(start, freed, MADV_FREE) == 0, "MADV_FREE: %s", strerror(errno));
  // Behind it, and invalidated later: when the worker has been there, it has been at all.
  expect(mprotect(start + freed + kept, kept, PROT_READ) == 0 &&
             mprotect(start + freed + kept, kept, PROT_READ | PROT_WRITE) == 0,
         "mprotect");
  wait_for_worker(length - PAGE);
  expect(device_word(&image, 5 * PAGE) == 6, "it is not shown in the read view");
  expect(mapping_kib(start, "LazyFree") > (long)(freed / 1024 * 9 / 10),
         "%ld of %zu KiB are still free", mapping_kib(start, "LazyFree"), freed / 1024);
  drain_lists();
  for (int i = 0; i < 100 && present(start); i++)
    if (madvise(start, freed, MADV_PAGEOUT) != 0)
      skip("MADV_PAGEOUT: %s", strerror(errno));
  for (size_t at = 0; at < freed; at += PAGE)
    zeros += *(uint64_t*)(start + at) == 0;
  expect(zeros > freed / PAGE * 9 / 10, "%zu of %zu pages were freed", zeros, freed / PAGE);
}

// Secret memory where pages have left just now, and would be looked for.
static void secret_instead(void) {
  int fd = (int)syscall(SYS_memfd_secret, 0);
  uint64_t word;
  if (fd < 0)
    skip("memfd_secret: %s", strerror(errno));
  expect(ftruncate(fd, 8 * PAGE) == 0, "ftruncate");
  resident_image(memory(LENGTH), LENGTH);
  expect(mprotect(image.start, LENGTH, PROT_READ) == 0 &&
             mprotect(image.start, LENGTH, PROT_READ | PROT_WRITE) == 0,
         "mprotect");
  if (mmap(image.start, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
      MAP_FAILED)
    skip("mapping secret memory: %s", strerror(errno));
  fill(image.start, 8 * PAGE, 1);
  wait_for_worker(LENGTH - PAGE);
  for (size_t page = 0; page < 8; page++)
    expect(reads_pattern(&image, page * PAGE, &word), "secret memory is read, page %zu", page);
  expect(device_word(&image, 8 * PAGE) == 9, "what is beside it");
}

static void forked(void) {
  resident_image(memory(LENGTH), LENGTH);
  int ends[2], status;
  char go;
  expect(pipe(ends) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    if (read(ends[0], &go, 1) != 1)
      _exit(2);
    _exit(*(uint64_t*)(image.start + 5 * PAGE) == 6 ? 0 : 1);
  }
  // Shared for copying: a write by the device now would be seen by the child.
  device_store(&image, 5 * PAGE, 50);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  device_store(&image, 5 * PAGE, 60);
  expect(write(ends[1], "g", 1) == 1, "go");
  waitpid(child, &status, 0);
  expect(status == 0, "the device wrote into the child's copy");
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 60, "the parent's page is not the device's");
}

static char* file_mapping(const char* folder, int* fd, size_t length) {
  char path[64];
  strcpy(path, folder);
  strcat(path, "/np.XXXXXX");
  *fd = mkstemp(path);
  if (*fd < 0)
    skip("%s: %s", path, strerror(errno));
  unlink(path);
  expect(ftruncate(*fd, (off_t)length) == 0, "ftruncate");
  char* start = mapped(length, MAP_SHARED, *fd);
  expect(start != MAP_FAILED, "mmap");
  return start;
}

static void truncated(void) {
  int fd;
  resident_image(file_mapping("/dev/shm", &fd, LENGTH), LENGTH);
  expect(ftruncate(fd, 5 * PAGE) == 0, "ftruncate");
  uint64_t word;
  for (size_t page = 5; page < PAGES; page++)
    expect(reads_pattern(&image, page * PAGE, &word), "page %zu", page);
  expect(device_word(&image, 4 * PAGE) == 5, "the rest stays");
  expect(fault_in_errno(image.adverb, image.region, image.start + 6 * PAGE, PAGE, false, NULL) ==
             EFAULT,
         "behind the end");
}

static void hole_punched(void) {
  int fd;
  resident_image(file_mapping("/dev/shm", &fd, LENGTH), LENGTH);
  uint64_t before = generation(&image, 1, 5 * PAGE);
  expect(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5 * PAGE, PAGE) == 0,
         "fallocate");
  only_page_5_left(before);
}

static void truncated_by_another(void) {
  int fd, status;
  resident_image(file_mapping("/dev/shm", &fd, LENGTH), LENGTH);
  pid_t child = fork();
  if (child == 0)
    _exit(ftruncate(fd, 0) != 0);
  waitpid(child, &status, 0);
  uint64_t word;
  expect(reads_pattern(&image, 0, &word), "the file is gone, not for the device");
}

static void huge_pages(bool split) {
  char* start = memory(6 * MIB);
  char* huge = (char*)(((uintptr_t)start + 2 * MIB - 1) & ~(2 * MIB - 1));
  madvise(huge, 4 * MIB, split ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  resident_image(huge, 4 * MIB);
  device_store(&image, 2 * MIB + 8 * PAGE, 33);
  if (split) {
    munmap(huge + 5 * PAGE, PAGE);
    uint64_t word;
    expect(reads_pattern(&image, 5 * PAGE, &word), "the page unmapped out of a huge one");
  } else {
    madvise(huge, 4 * MIB, MADV_HUGEPAGE);
    if (madvise(huge, 4 * MIB, MADV_COLLAPSE) != 0)
      skip("MADV_COLLAPSE: %s", strerror(errno));
  }
  fault_in(image.adverb, image.region, huge + 2 * MIB, 2 * MIB, true);
  expect(device_word(&image, 2 * MIB + 8 * PAGE) == 33, "the device's bytes were lost");
  device_store(&image, 2 * MIB + 8 * PAGE, 34);
  expect(*(uint64_t*)(huge + 2 * MIB + 8 * PAGE) == 34, "the device writes to the page of before");
}

static void huge_split(void) {
  huge_pages(true);
}
static void huge_collapse(void) {
  huge_pages(false);
}

static void hugetlb(void) {
  write_file("/proc/sys/vm/nr_hugepages", "4");
  char* start = mapped(4 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1);
  if (start == MAP_FAILED)
    skip("no huge pages: %s", strerror(errno));
  resident_image(start, 4 * MIB);
  device_store(&image, 2 * MIB, 44);
  expect(*(uint64_t*)(start + 2 * MIB) == 44, "the device's write");
  munmap(start + 2 * MIB, 2 * MIB);
  uint64_t word;
  expect(reads_pattern(&image, 2 * MIB, &word), "unmapped");
  expect(device_word(&image, 0) == 1, "the other one stays");
}

static void same_page_merging(void) {
  write_file("/sys/kernel/mm/ksm/pages_to_scan", "10000");
  write_file("/sys/kernel/mm/ksm/sleep_millisecs", "1");
  char* start = memory(LENGTH);
  resident_image(start, LENGTH);
  for (int page = 0; page < PAGES; page++)
    memset(start + page * PAGE, 7, PAGE);
  expect(madvise(start, LENGTH, MADV_MERGEABLE) == 0, "madvise");
  write_file("/sys/kernel/mm/ksm/run", "1");
  bool merged = false;
  for (int i = 0; i < 400 && !merged; i++) {
    usleep(10000);
    merged = generation(&image, 1, 5 * PAGE) > 0;
  }
  write_file("/sys/kernel/mm/ksm/run", "0");
  if (!merged)
    skip("nothing was merged in 4 s");
  // One page may stand for all now: the device must not write to it.
  for (int page = 0; page < PAGES; page++)
    device_store(&image, page * PAGE, 1000 + page);
  for (int page = 1; page < PAGES; page++)
    expect(*(uint64_t*)(start + page * PAGE) == 0x0707070707070707 ||
               *(uint64_t*)(start + page * PAGE) == 1000u + page,
           "page %d has another's bytes", page);
  fault_in(image.adverb, image.region, start, LENGTH, true);
  for (int page = 0; page < PAGES; page++)
    device_store(&image, page * PAGE, 2000 + page);
  for (int page = 0; page < PAGES; page++)
    expect(*(uint64_t*)(start + page * PAGE) == 2000u + page, "page %d", page);
}

static void secret(void) {
  int fd = (int)syscall(SYS_memfd_secret, 0);
  if (fd < 0)
    skip("memfd_secret: %s", strerror(errno));
  expect(ftruncate(fd, LENGTH) == 0, "ftruncate");
  char* start = mapped(LENGTH, MAP_SHARED, fd);
  if (start == MAP_FAILED)
    skip("mapping secret memory: %s", strerror(errno));
  make_image(&image, SOFT, start, LENGTH);
  fill(start, LENGTH, 1);
  expect(fault_in_errno(image.adverb, image.region, start, PAGE, false, NULL) == EFAULT,
         "secret memory was shown");
  uint64_t word;
  expect(reads_pattern(&image, 0, &word), "secret memory is read");
}

static void* serve_missing(void* argument) {
  int fd = *(int*)argument;
  struct uffd_msg message;
  static _Alignas(4096) uint64_t page[512] = {555};
  if (read(fd, &message, sizeof message) == sizeof message) {
    struct uffdio_copy copy = {
        .dst = message.arg.pagefault.address & ~(PAGE - 1), .src = (uintptr_t)page, .len = PAGE};
    ioctl(fd, UFFDIO_COPY, &copy);
  }
  return NULL;
}

static void userfault_missing(void) {
  char* start = memory(LENGTH);
  int fd = userfaults(0);
  struct uffdio_register missing = {.range = {(uintptr_t)start, LENGTH},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
  expect(ioctl(fd, UFFDIO_REGISTER, &missing) == 0, "register");
  pthread_t server;
  make_image(&image, SOFT, start, LENGTH);
  pthread_create(&server, NULL, serve_missing, &fd);
  fault_in(image.adverb, image.region, start + 5 * PAGE, PAGE, false);
  pthread_join(server, NULL);
  expect(device_word(&image, 5 * PAGE) == 555, "the handler's page");
}

static void userfault_write_protect(void) {
  char* start = memory(LENGTH);
  int fd = userfaults(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
  resident_image(start, LENGTH);
  struct uffdio_register protect = {.range = {(uintptr_t)start, LENGTH},
                                    .mode = UFFDIO_REGISTER_MODE_WP};
  if (ioctl(fd, UFFDIO_REGISTER, &protect) != 0)
    skip("write-protect mode: %s", strerror(errno));
  struct uffdio_writeprotect on = {.range = {(uintptr_t)start, LENGTH},
                                   .mode = UFFDIO_WRITEPROTECT_MODE_WP};
  expect(ioctl(fd, UFFDIO_WRITEPROTECT, &on) == 0, "write-protect");
  device_store(&image, 5 * PAGE, 0xbad);
  expect(*(uint64_t*)(start + 5 * PAGE) == 6, "the device wrote to a write-protected page");
}

static void moved_between_nodes(void) {
  resident_image(memory(LENGTH), LENGTH);
  device_store(&image, 5 * PAGE, 66);
  void* pages[PAGES];
  int nodes[PAGES], status[PAGES];
  for (int page = 0; page < PAGES; page++)
    pages[page] = image.start + page * PAGE;
  if (syscall(SYS_move_pages, 0, PAGES, pages, NULL, status, 0) != 0)
    skip("move_pages: %s", strerror(errno));
  for (int page = 0; page < PAGES; page++)
    nodes[page] = !status[page];
  uint64_t before = generation(&image, 1, 5 * PAGE);
  if (syscall(SYS_move_pages, 0, PAGES, pages, nodes, status, MPOL_MF_MOVE) != 0 ||
      status[5] != nodes[5])
    skip("no second node");
  expect(generation(&image, 1, 5 * PAGE) > before, "it moved and the tables do not say so");
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  expect(device_word(&image, 5 * PAGE) == 66, "lost on the way");
  device_store(&image, 5 * PAGE, 67);
  expect(*(uint64_t*)(image.start + 5 * PAGE) == 67, "the device writes to the old node");
}

static void compacted(void) {
  resident_image(memory(32 * MIB), 32 * MIB);
  for (size_t page = 0; page < 32 * MIB / PAGE; page += 2)
    munmap(image.start + page * PAGE, PAGE);
  write_file("/proc/sys/vm/compact_memory", "1");
  fault_in(image.adverb, image.region, image.start + PAGE, PAGE, true);
  for (size_t page = 1; page < 32 * MIB / PAGE; page += 2) {
    uint64_t word;
    expect(reads_pattern(&image, page * PAGE, &word) || word == page + 1, "page %zu reads %#llx",
           page, (unsigned long long)word);
  }
}

static void survive(int number) {
  (void)number;
}

static void poisoned(void) {
  signal(SIGBUS, survive);
  resident_image(memory(LENGTH), LENGTH);
  if (madvise(image.start + 5 * PAGE, PAGE, MADV_HWPOISON) != 0)
    skip("MADV_HWPOISON: %s", strerror(errno));
  uint64_t word;
  expect(reads_pattern(&image, 5 * PAGE, &word), "the device reads poison");
  int error = fault_in_errno(image.adverb, image.region, image.start + 5 * PAGE, PAGE, false, NULL);
  expect(error == EHWPOISON || error == EFAULT, "errno %d", error);
}

static void whole_set_leaves(void) {
  size_t length = 512 * MIB;
  char* start = memory(length);
  int adverb = open_adverb();
  uint32_t region = create(adverb, start, length);
  struct adverb_build build;
  for (char* at = start; at < start + length; at = (char*)(uintptr_t)(build.start + build.length)) {
    expect(build_errno(adverb, region, at, 0, &build) == 0, "build");
    expect(build_errno(adverb, region, at, 1, &build) == 0, "build");
  }
  fault_in(adverb, region, start, length, true);
  // Under a memory this full some leave by themselves.
  expect(query(adverb, region).resident[1] > length / PAGE / 2, "resident");
  munmap(start, length);
  expect(query(adverb, region).resident[1] == 0 && query(adverb, region).resident[0] == 0,
         "some stayed");
}

int main(int count, char** words) {
  choose(count, words);
  run("munmap: gone for the device, too", unmapped);
  run("MADV_DONTNEED: the old page is out of reach, the new one in", dontneed);
  run("mprotect(PROT_NONE): gone for the device, too", no_access);
  run("mprotect(PROT_READ): the device may read but not write", read_only);
  run("mremap: the device stays with the address", remapped);
  run("MADV_PAGEOUT: what the device wrote survives swap", paged_out);
  run("MADV_FREE: what the device wrote keeps the page", device_write_to_clean_page);
  run("MADV_FREE: what nobody has written since is freed", freed_lazily);
  run("fork: the device writes to the parent's copy only", forked);
  run("truncate: gone for the device, too", truncated);
  run("truncate by another process: gone for the device, too", truncated_by_another);
  run("hole punch: gone for the device, too", hole_punched);
  run("huge page split: bytes and address stay together", huge_split);
  run("huge page collapse: bytes and address stay together", huge_collapse);
  run("hugetlb: read, written and unmapped like any page", hugetlb);
  run_timed("KSM: the device never writes to a merged page", same_page_merging);
  run("memfd_secret: refused", secret);
  run("memfd_secret: not shown where other memory was", secret_instead);
  run("userfaultfd missing: the handler's page is shown", userfault_missing);
  run("userfaultfd write-protect: the device may not write", userfault_write_protect);
  run("move_pages: the device goes with the page", moved_between_nodes);
  run("compaction: every page reads as itself or as absent", compacted);
  run("HWPOISON: the device does not read poison", poisoned);
  run("512 MiB of resident pages leave with their mapping", whole_set_leaves);
  return verdict();
}
