// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// State tables: who may map them and how, who pays for them, and for how long.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"

// A region with both views and their tables.
struct tables {
  uint32_t region;
  struct adverb_build build[2];
  void* words[2];
};

// False if the user of now may not be charged for it; what was made of it is gone again then.
static bool make_tables(int adverb, char* start, size_t length, struct tables* tables) {
  if (create_errno(adverb, start, length, &tables->region) == ENOMEM)
    return false;
  for (int view = 0; view < 2; view++) {
    struct adverb_build* build = &tables->build[view];
    int error = build_errno(adverb, tables->region, start, view, build);
    if (error == ENOMEM) {
      destroy_errno(adverb, tables->region);
      return false;
    }
    expect(error == 0, "building view %d: %s", view, strerror(error));
    tables->words[view] =
        mmap(NULL, build->table_length, PROT_READ, MAP_SHARED, adverb, (off_t)build->table_offset);
    expect(tables->words[view] != MAP_FAILED, "mmap: %s", strerror(errno));
  }
  return true;
}

static void drop_tables(int adverb, const struct tables* tables) {
  destroy_errno(adverb, tables->region);
  for (int view = 0; view < 2; view++) {
    close(tables->build[view].fd);
    munmap(tables->words[view], tables->build[view].table_length);
  }
}

// From now on an ordinary user, who may be charged for one such region and no more. Returns what
// that is, in KiB.
static long pay_for_one(int adverb, char* start, size_t length) {
  struct tables tables;
  expect(make_tables(adverb, start, length, &tables), "root is refused");
  long charged = (long)query(adverb, tables.region).charged_pages * 4;
  struct rlimit limit = {(rlim_t)charged * 1024, (rlim_t)charged * 1024};
  drop_tables(adverb, &tables);
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
  expect(setuid(65534) == 0, "setuid: %s", strerror(errno));
  return charged;
}

static void tables_are_charged(void) {
  int adverb = open_adverb(), status;
  char* start = memory(64 * MIB);
  struct tables tables, other;
  long charged = pay_for_one(adverb, start, 64 * MIB), locked = status_kib("VmLck");
  expect(charged > 4 * 4 && charged < 16 * 4, "%ld KiB for 64 MiB", charged);
  expect(make_tables(adverb, start, 64 * MIB, &tables), "the first");
  expect(!make_tables(adverb, start, 64 * MIB, &other), "a second one of the same process");
  // The limit is one of the user.
  pid_t child = fork();
  if (child == 0)
    _exit(make_tables(adverb, start, 64 * MIB, &other));
  waitpid(child, &status, 0);
  expect(status == 0, "a second one of another process of the user");
  expect(status_kib("VmLck") == locked, "VmLck rose by %ld KiB", status_kib("VmLck") - locked);
  // As long as a table is mapped its pages are there, and paid for.
  expect(destroy_errno(adverb, tables.region) == 0, "destroy");
  for (int view = 0; view < 2; view++) {
    close(tables.build[view].fd);
    expect(!make_tables(adverb, start, 64 * MIB, &other), "tables still mapped are not charged");
    munmap(tables.words[view], tables.build[view].table_length);
  }
  expect(make_tables(adverb, start, 64 * MIB, &other), "tables no longer mapped stay charged");
}

// The limit is that of creation: who raises it later pays for later regions by it.
static void limit_of_creation(void) {
  int adverb = open_adverb();
  char* start = memory(64 * MIB);
  struct rlimit limit = {3 * PAGE, RLIM_INFINITY}; // a region's, and little more
  struct adverb_build build;
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
  expect(setuid(65534) == 0, "setuid: %s", strerror(errno));
  uint32_t before = create(adverb, start, 64 * MIB);
  limit.rlim_cur = RLIM_INFINITY;
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
  expect(build_errno(adverb, before, start, 0, &build) == ENOMEM, "beyond the limit of creation");
  uint32_t after = create(adverb, start, 64 * MIB);
  expect(build_errno(adverb, after, start, 0, &build) == 0, "within it");
}

static void* map_table(int adverb, const struct tables* tables) {
  return mmap(NULL, tables->build[0].table_length, PROT_READ, MAP_SHARED, adverb,
              (off_t)tables->build[0].table_offset);
}

// On kernels that let it, a child with the parent's table, and both let go at the same time.
static void unmap_in_two(int adverb, const struct tables* tables) {
  size_t length = tables->build[0].table_length;
  for (int i = 0; i < 200; i++) {
    void* table = map_table(adverb, tables);
    expect(table != MAP_FAILED, "mmap: %s", strerror(errno));
    if (madvise(table, length, MADV_DOFORK) != 0) {
      munmap(table, length);
      return;
    }
    pid_t child = fork();
    if (child == 0) {
      munmap(table, length);
      _exit(0);
    }
    munmap(table, length);
    for (int k = 0; k < 20; k++)
      munmap(map_table(adverb, tables), length);
    waitpid(child, NULL, 0);
  }
}

// Parts and copies of a mapping, and many one after the other: in the end nothing is left of them.
static void tables_come_and_go(void) {
  int adverb = open_adverb();
  char* start = memory(1UL << 29);
  struct tables tables, again;
  pay_for_one(adverb, start, 1UL << 29);
  expect(make_tables(adverb, start, 1UL << 29, &tables), "the first");
  size_t length = tables.build[0].table_length;
  char* table = tables.words[0];
  expect(length >= 4 * PAGE, "a table of %zu bytes", length);
  char* room = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(mremap(table, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room, "mremap: %s",
         strerror(errno));
  munmap(room + PAGE, PAGE);
  munmap(room, PAGE);
  for (int i = 0; i < 20000; i++) {
    table = map_table(adverb, &tables);
    expect(table != MAP_FAILED, "mmap: %s", strerror(errno));
    munmap(table, length);
  }
  unmap_in_two(adverb, &tables);
  tables.words[0] = room + 2 * PAGE;
  tables.build[0].table_length -= 2 * PAGE;
  drop_tables(adverb, &tables);
  expect(make_tables(adverb, start, 1UL << 29, &again), "something stays charged");
}

// What is charged is what is used: a large region is usable with what an ordinary user may lock, as
// long as what is used of it at a time is not more.
static void working_set(void) {
  enum { EXTENTS = 64, AT_A_TIME = 24 };
  const size_t gib = 1UL << 30;
  const struct rlimit limit = {8 * MIB, 8 * MIB};
  int adverb = open_adverb();
  char* start = (char*)(1UL << 40);
  expect(mmap(start, EXTENTS * gib, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == start,
         "mmap: %s", strerror(errno));
  madvise(start, EXTENTS * gib, MADV_NOHUGEPAGE);
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0 && setuid(65534) == 0, "%s", strerror(errno));
  uint32_t region = create(adverb, start, EXTENTS * gib);
  for (int i = 0; i < EXTENTS; i++) {
    char* extent = start + i * gib;
    uint64_t charged = query(adverb, region).charged_pages;
    for (int view = 0; view < 2; view++) {
      struct adverb_build build;
      int error = build_errno(adverb, region, extent, view, &build);
      expect(error == 0, "view %d of extent %d: %s", view, i, strerror(error));
      close(build.fd);
    }
    fault_in(adverb, region, extent + gib / 2, PAGE, true);
    expect(query(adverb, region).charged_pages > charged + 64 &&
               query(adverb, region).charged_pages < charged + 72,
           "%llu pages for an extent, two tables and a page",
           (unsigned long long)(query(adverb, region).charged_pages - charged));
    charged = query(adverb, region).charged_pages;
    fault_in(adverb, region, extent, 4 * MIB, true);
    expect(query(adverb, region).charged_pages == charged + 2, "%llu pages for 4 MiB that came",
           (unsigned long long)(query(adverb, region).charged_pages - charged));
    madvise(extent, 4 * MIB, MADV_DONTNEED);
    for (int view = 0; view < 2 && i >= AT_A_TIME; view++)
      expect(give_back_errno(adverb, region, extent - AT_A_TIME * gib, view) == 0, "giving back");
  }
  // Without giving back it would be too much.
  expect(query(adverb, region).charged_pages > 1024, "%llu pages",
         (unsigned long long)query(adverb, region).charged_pages);
}

static void tables_are_read_only(void) {
  struct image image;
  make_image(&image, SOFT, memory(PAGE), PAGE);
  void* table = (void*)image.words[0];
  expect(mprotect(table, PAGE, PROT_READ | PROT_WRITE) != 0 && errno == EACCES,
         "mprotect lets one write");
  struct adverb_build* build = &image.view[0];
  expect(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, image.adverb,
              (off_t)build->table_offset) == MAP_FAILED,
         "mmap lets one write");
  expect(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, image.adverb, (off_t)build->table_offset) ==
             MAP_FAILED,
         "private");
  expect(mmap(NULL, 64 * PAGE, PROT_READ, MAP_SHARED, image.adverb, (off_t)build->table_offset) ==
             MAP_FAILED,
         "longer");
  expect(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, image.adverb,
              (off_t)(build->table_offset + PAGE)) == MAP_FAILED,
         "inside");
  expect(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, image.adverb, 0x7ff00000000) == MAP_FAILED,
         "no table");
}

// For peers to read by RDMA.
static void tables_can_be_registered(void) {
  struct image image;
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list && list[0] ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = context ? ibv_alloc_pd(context) : NULL;
  expect(pd, "no RDMA device");
  make_image(&image, SOFT, memory(64 * PAGE), 64 * PAGE);
  for (int view = 0; view < 2; view++) {
    struct ibv_mr* mr = ibv_reg_mr(pd, (void*)image.words[view], image.view[view].table_length,
                                   IBV_ACCESS_REMOTE_READ);
    expect(mr, "view %d: %s", view, strerror(errno));
    expect(ibv_dereg_mr(mr) == 0, "dereg");
    expect(!ibv_reg_mr(pd, (void*)image.words[view], image.view[view].table_length,
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
           "a device may write the table of view %d", view);
  }
}

int main(int count, char** words) {
  choose(count, words);
  run("tables are charged to the user and given back", tables_are_charged);
  run("what a region may be charged is the limit of its creation", limit_of_creation);
  run("tables can be mapped in parts, moved, and over and over", tables_come_and_go);
  run("8 MiB of RLIMIT_MEMLOCK are enough for 64 GiB, by giving back", working_set);
  run("state tables cannot be written", tables_are_read_only);
  run("state tables can be registered for remote reads, not writes", tables_can_be_registered);
  return verdict();
}
