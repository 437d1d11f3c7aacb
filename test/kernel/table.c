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

static void tables_are_charged(void) {
  long before = status_kib("VmLck");
  struct image image;
  make_image(&image, SOFT, memory(64 * MIB), 64 * MIB);
  long charged = (long)query(image.adverb, image.region).charged_pages * 4;
  expect(charged > 32 * 4 && charged < 64 * 4, "%ld KiB for 64 MiB", charged);
  expect(status_kib("VmLck") - before == charged, "VmLck rose by %ld of %ld KiB",
         status_kib("VmLck") - before, charged);
  // As long as a table is mapped its pages are there, and paid for; then they are given back in
  // their time.
  expect(destroy_errno(image.adverb, image.region) == 0, "destroy");
  close(image.device);
  for (int view = 0; view < 2; view++) {
    close(image.view[view].fd);
    usleep(10000);
    expect(status_kib("VmLck") - before == charged,
           "of tables still mapped %ld of %ld KiB are charged", status_kib("VmLck") - before,
           charged);
    munmap((void*)image.words[view], image.view[view].table_length);
  }
  for (int tries = 0; tries < 1000 && status_kib("VmLck") != before; tries++)
    usleep(10000);
  expect(status_kib("VmLck") == before, "%ld KiB stay charged", status_kib("VmLck") - before);
}

// On kernels that let it, a child with the parent's table, and both let go at the same time.
static void unmap_in_two(const struct image* image) {
  size_t length = image->view[0].table_length;
  for (int i = 0; i < 200; i++) {
    void* table = mmap(NULL, length, PROT_READ, MAP_SHARED, image->adverb,
                       (off_t)image->view[0].table_offset);
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
      munmap(mmap(NULL, length, PROT_READ, MAP_SHARED, image->adverb,
                  (off_t)image->view[0].table_offset),
             length);
    waitpid(child, NULL, 0);
  }
}

// Parts and copies of a mapping, and a new one while the last is being given back.
static void tables_come_and_go(void) {
  struct image image;
  long before = status_kib("VmLck");
  make_image(&image, SOFT, memory(1UL << 29), 1UL << 29);
  size_t length = image.view[0].table_length;
  char* table = (char*)image.words[0];
  expect(length >= 4 * PAGE, "a table of %zu bytes", length);
  char* room = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(mremap(table, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room, "mremap: %s",
         strerror(errno));
  munmap(room + PAGE, PAGE);
  munmap(room, PAGE);
  munmap(room + 2 * PAGE, length - 2 * PAGE);
  munmap((void*)image.words[1], image.view[1].table_length);
  for (int i = 0; i < 20000; i++) {
    table =
        mmap(NULL, length, PROT_READ, MAP_SHARED, image.adverb, (off_t)image.view[0].table_offset);
    expect(table != MAP_FAILED, "mmap: %s", strerror(errno));
    munmap(table, length);
  }
  unmap_in_two(&image);
  destroy_errno(image.adverb, image.region);
  close(image.device);
  close(image.view[0].fd);
  close(image.view[1].fd);
  for (int tries = 0; tries < 1000 && status_kib("VmLck") != before; tries++)
    usleep(10000);
  expect(status_kib("VmLck") == before, "%ld KiB stay charged", status_kib("VmLck") - before);
}

static void memlock_limit(void) {
  char* start = memory(64 * MIB);
  int adverb = open_adverb();
  struct rlimit limit = {64 * 1024, 64 * 1024};
  struct adverb_build build;
  uint32_t region = create(adverb, start, 64 * MIB);
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
  if (setuid(65534) != 0)
    skip("setuid: %s", strerror(errno));
  expect(build_errno(adverb, region, start, 0, &build) == ENOMEM, "tables beyond RLIMIT_MEMLOCK");
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
  run("tables are charged to VmLck and given back", tables_are_charged);
  run("tables can be mapped in parts, moved, and over and over", tables_come_and_go);
  run("RLIMIT_MEMLOCK limits tables", memlock_limit);
  run("state tables cannot be written", tables_are_read_only);
  run("state tables can be registered for remote reads, not writes", tables_can_be_registered);
  return verdict();
}
