// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What adverb.ko's steps cost, beside pinning the same memory with stock ibv_reg_mr. Prints
// "name<TAB>microseconds"; for scripts/bench module.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void show(const char* name, double microseconds) {
  printf("%s\t%.2f\n", name, microseconds);
}

// The best of some: what else runs on the machine only ever adds.
static double create_cost(int adverb, size_t length) {
  double best = 1e12;
  for (int i = 0; i < 20; i++) {
    double start = now();
    uint32_t region = create(adverb, (void*)(1UL << 40), length);
    double took = now() - start;
    best = took < best ? took : best;
    destroy_errno(adverb, region);
  }
  return best;
}

static double register_cost(struct ibv_pd* pd, size_t length, bool touched, long* pinned) {
  char* start = memory(length);
  if (touched)
    memset(start, 1, length);
  double before = now();
  struct ibv_mr* mr =
      ibv_reg_mr(pd, start, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  double took = now() - before;
  if (!mr)
    fail("ibv_reg_mr: %s", strerror(errno));
  *pinned = status_kib("VmPin");
  ibv_dereg_mr(mr);
  munmap(start, length);
  return took;
}

static void stock(size_t length) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  struct ibv_context* context = list && list[0] ? ibv_open_device(list[0]) : NULL;
  struct ibv_pd* pd = context ? ibv_alloc_pd(context) : NULL;
  long pinned;
  if (!pd)
    fail("no RDMA device");
  show("stock ibv_reg_mr 64 MiB, pages absent", register_cost(pd, length, false, &pinned));
  show("stock ibv_reg_mr 64 MiB, pages present", register_cost(pd, length, true, &pinned));
  printf("stock KiB pinned of 64 MiB\t%ld\n", pinned);
}

static void steps(const char* device, size_t length) {
  struct image image;
  size_t pages = length / PAGE;
  make_image(&image, device, memory(length), length);
  double start = now();
  fault_in(image.adverb, image.region, image.start, length, true);
  show("fault-in of an absent page (minor fault)", (now() - start) / (double)pages);
  struct adverb_query before = query(image.adverb, image.region);
  start = now();
  mprotect(image.start, length, PROT_NONE);
  double took = now() - start;
  struct adverb_query after = query(image.adverb, image.region);
  show("leave, of both views, a page", took / (double)pages);
  printf("retargets a sync\t%.1f\n",
         (double)(after.retargets - before.retargets) / (double)(after.syncs - before.syncs));
  mprotect(image.start, length, PROT_READ | PROT_WRITE);
  start = now();
  fault_in(image.adverb, image.region, image.start, length, true);
  show("fault-in of a page that is present", (now() - start) / (double)pages);
  printf("KiB pinned of 64 MiB\t%ld\n", status_kib("VmPin"));
  start = now();
  munmap(image.start, length);
  show("munmap of 64 MiB resident in both views", now() - start);
  drop_image(&image);
}

static void all(void) {
  const size_t length = 64 * MIB;
  int adverb = open_adverb();
  static const struct {
    const char* name;
    size_t length;
  } sizes[] = {{"region create 1 MiB", MIB},
               {"region create 1 GiB", 1UL << 30},
               {"region create 1 TiB", 1UL << 40}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    show(sizes[i].name, create_cost(adverb, sizes[i].length));
  struct adverb_build build;
  uint32_t region = create(adverb, (void*)(1UL << 40), 1UL << 30);
  double start = now();
  expect(build_errno(adverb, region, (void*)(1UL << 40), 0, &build) == 0, "build");
  show("extent build, 1 GiB", now() - start);
  close(build.fd);
  close(adverb);
  steps("/dev/adverb_test_edu", length);
  stock(length);
  fflush(stdout);
}

int main(void) {
  run("bench", all);
  return verdict();
}
