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
#define ROUNDS 7
#define LEAVES 40 // of one page, a round
#define GIB (1UL << 30)
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
  char* start = fresh(GIB);
  show("1 GiB absent: build and attach", "stock", register_cost(pd, start, GIB));
  show("1 GiB resident: build, show, attach", "stock", register_cost(pd, start, GIB));
  munmap(start, GIB);
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

// All that a device needs to reach a GiB, of which nothing or all is in memory: what stock's
// registration does.
static void attach_cost(const char* step, bool resident) {
  int adverb = open_adverb(), device = open(EDU, O_RDWR | O_CLOEXEC);
  struct adverb_build build;
  char* memory = fresh(GIB);
  for (size_t at = 0; resident && at < GIB; at += PAGE)
    memory[at] = 1;
  uint32_t region = create(adverb, memory, GIB);
  double start = now();
  expect(build_errno(adverb, region, memory, 0, &build) == 0, "build");
  if (resident)
    expect(bring_errno(adverb, region, memory, GIB, ADVERB_FAULT_PRESENT, NULL) == 0, "show");
  struct adverb_test_import import = {.slot = 0, .fd = build.fd};
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  show(step, "adverb", now() - start);
  expect(query(adverb, region).resident[0] == (resident ? GIB / PAGE : 0), "%llu pages resident",
         (unsigned long long)query(adverb, region).resident[0]);
  close(device);
  close(build.fd);
  close(adverb);
  munmap(memory, GIB);
}

// How long mprotect takes, a page, that makes the first pages leave, when they are all resident in
// the read view.
static double leave_cost(const struct image* image, size_t pages) {
  fault_in(image->adverb, image->region, image->start, BATCH * PAGE, false);
  double start = now();
  mprotect(image->start, pages * PAGE, PROT_NONE);
  double took = now() - start;
  mprotect(image->start, pages * PAGE, PROT_READ | PROT_WRITE);
  return took / (double)pages;
}

static void show_leaves(const struct image* image, const char* of_one, const char* of_many) {
  for (int i = 0; i < LEAVES; i++)
    show(of_one, "adverb", leave_cost(image, 1));
  for (int i = 0; i < ROUNDS; i++)
    show(of_many, "adverb", leave_cost(image, BATCH));
}

// With a device there are retargets and a sync of the IOMMU, of one page or of a batch, and without
// one there are not.
static void leave_costs(void) {
  struct image image;
  make_image(&image, EDU, fresh(BATCH * PAGE), BATCH * PAGE);
  show_leaves(&image, "leave of one page, with a device", "leave of 2048, with a device, a page");
  close(image.device);
  show_leaves(&image, "leave of one page, no device", "leave of 2048, no device, a page");
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
    attach_cost("1 GiB absent: build and attach", false);
    attach_cost("1 GiB resident: build, show, attach", true);
    leave_costs();
    way_of_pages();
    stock(pd);
    stock_of_a_gib(pd);
  }
  fflush(stdout);
}

int main(void) {
  run("bench", all);
  return verdict();
}
