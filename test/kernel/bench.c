// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What adverb.ko's steps cost, beside pinning the same range with stock ibv_reg_mr. Prints
// "step<TAB>stock or adverb<TAB>value" for each round, microseconds unless the step says KiB; for
// scripts/bench module.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define ROUNDS 5
#define LENGTH (64 * MIB)
#define PAGES 16384.0 // of it
#define BATCH 2048UL  // pages of 128 granules: what Leave does with one sync per IOMMU domain

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void show(const char* step, const char* whose, double value) {
  printf("%s\t%s\t%.3f\n", step, whose, value);
}

// Memory of one extent, where nothing else is.
static char* fresh(size_t length) {
  char* start = mmap((void*)(1UL << 40), length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (start == MAP_FAILED)
    fail("mmap of %zu bytes: %s", length, strerror(errno));
  madvise(start, length, MADV_NOHUGEPAGE);
  return start;
}

static void swap_out(char* start, size_t length) {
  expect(madvise(start, length, MADV_PAGEOUT) == 0, "MADV_PAGEOUT: %s", strerror(errno));
  expect((size_t)status_kib("VmSwap") * 1024 > length / 2, "only %ld KiB went to swap",
         status_kib("VmSwap"));
}

// Stock.

static double register_cost(struct ibv_pd* pd, char* start, size_t length) {
  double before = now();
  struct ibv_mr* mr =
      ibv_reg_mr(pd, start, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  double took = now() - before;
  if (!mr)
    fail("ibv_reg_mr of %zu bytes: %s", length, strerror(errno));
  if (length == LENGTH)
    show("KiB pinned of 65536", "stock", (double)status_kib("VmPin"));
  ibv_dereg_mr(mr);
  return took;
}

static void stock(struct ibv_pd* pd) {
  char* start = fresh(LENGTH);
  show("64 MiB absent, a page", "stock", register_cost(pd, start, LENGTH) / PAGES);
  show("64 MiB present, a page", "stock", register_cost(pd, start, LENGTH) / PAGES);
  swap_out(start, LENGTH);
  show("64 MiB in swap, a page", "stock", register_cost(pd, start, LENGTH) / PAGES);
  munmap(start, LENGTH);
  show("create 1 MiB", "stock", register_cost(pd, fresh(MIB), MIB));
  munmap((void*)(1UL << 40), MIB);
}

static void stock_of_a_gib(struct ibv_pd* pd) {
  char* start = fresh(1UL << 30);
  show("create 1 GiB", "stock", register_cost(pd, start, 1UL << 30));
  munmap(start, 1UL << 30);
}

// Ours.

static void create_cost(const char* step, size_t length) {
  int adverb = open_adverb();
  // The first pays for what all share, the books of a user for one.
  create(adverb, (void*)(1UL << 40), PAGE);
  double start = now();
  uint32_t region = create(adverb, (void*)(1UL << 40), length);
  show(step, "adverb", now() - start);
  destroy_errno(adverb, region);
  close(adverb);
}

static void extent_cost(void) {
  int adverb = open_adverb(), device = open(EDU, O_RDWR | O_CLOEXEC);
  struct adverb_build build;
  uint32_t region = create(adverb, (void*)(1UL << 40), 1UL << 30);
  double start = now();
  expect(build_errno(adverb, region, (void*)(1UL << 40), 0, &build) == 0, "build");
  show("extent build, 1 GiB", "adverb", now() - start);
  struct adverb_test_import import = {.slot = 0, .fd = build.fd};
  start = now();
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  show("attach of a device, 1 GiB", "adverb", now() - start);
  close(device);
  close(build.fd);
  close(adverb);
}

// How long mprotect takes that makes the first pages leave, when they are all resident in the read
// view.
static double leave_cost(const struct image* image, size_t pages) {
  fault_in(image->adverb, image->region, image->start, BATCH * PAGE, false);
  double start = now();
  mprotect(image->start, pages * PAGE, PROT_NONE);
  double took = now() - start;
  mprotect(image->start, pages * PAGE, PROT_READ | PROT_WRITE);
  return took;
}

// Of one page, the mean of many.
static double leave_cost_of_one(const struct image* image) {
  double sum = 0;
  for (int i = 0; i < 200; i++)
    sum += leave_cost(image, 1);
  return sum / 200;
}

// With a device a Leave of n pages (of one batch) does n retargets and one sync more than without.
static void retarget_cost(void) {
  struct image image;
  make_image(&image, EDU, fresh(BATCH * PAGE), BATCH * PAGE);
  double one = leave_cost_of_one(&image), batch = leave_cost(&image, BATCH);
  close(image.device);
  one -= leave_cost_of_one(&image);
  batch -= leave_cost(&image, BATCH);
  double retarget = (batch - one) / (BATCH - 1);
  show("retarget of a page", "adverb", retarget);
  show("sync of a batch", "adverb", one - retarget);
  munmap(image.start, BATCH * PAGE);
  drop_image(&image);
}

static void fault_in_cost(const struct image* image, const char* step, bool major) {
  struct adverb_query before = query(image->adverb, image->region);
  double start = now();
  fault_in(image->adverb, image->region, image->start, LENGTH, true);
  show(step, "adverb", (now() - start) / PAGES);
  struct adverb_query after = query(image->adverb, image->region);
  expect((after.major > before.major) == major, "%llu major faults",
         (unsigned long long)(after.major - before.major));
}

static void way_of_pages(void) {
  struct image image;
  show("KiB pinned before", "adverb", (double)status_kib("VmPin"));
  make_image(&image, EDU, fresh(LENGTH), LENGTH);
  fault_in_cost(&image, "64 MiB absent, a page", false);
  double start = now();
  mprotect(image.start, LENGTH, PROT_NONE);
  show("leave of both views, a page", "adverb", (now() - start) / PAGES);
  mprotect(image.start, LENGTH, PROT_READ | PROT_WRITE);
  fault_in_cost(&image, "64 MiB present, a page", false);
  swap_out(image.start, LENGTH);
  fault_in_cost(&image, "64 MiB in swap, a page", true);
  show("KiB pinned of 65536", "adverb", (double)status_kib("VmPin"));
  munmap(image.start, LENGTH);
  drop_image(&image);
}

static void all(void) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list && list[0] ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = context ? ibv_alloc_pd(context) : NULL;
  if (!pd)
    fail("no RDMA device");
  patience(900);
  for (int round = 0; round < ROUNDS; round++) {
    create_cost("create 1 MiB", MIB);
    create_cost("create 1 GiB", 1UL << 30);
    create_cost("create 1 TiB", 1UL << 40);
    extent_cost();
    retarget_cost();
    way_of_pages();
    stock(pd);
    if (round < 3)
      stock_of_a_gib(pd);
  }
  fflush(stdout);
}

int main(void) {
  run("bench", all);
  return verdict();
}
