// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "rnic.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "churn.h"

#define PARAMETERS "/sys/module/rdma_rxe/parameters/"

struct image image;
struct rc_device nic;
struct rc_region regions[2];

void register_view(int view, int access) {
  int error = rc_register_errno(&nic, image.view[view].fd, 0, CHURN_LENGTH, (uintptr_t)image.start,
                                access, &regions[view]);
  expect(error == 0, "registering view %d: %s", view, strerror(error));
}

static void deregister_views(void) {
  for (int view = 0; view < 2; view++) {
    int error = rc_deregister_errno(&nic, &regions[view]);
    expect(error == 0, "deregistering view %d: %s", view, strerror(error));
  }
}

void begin_region(void) {
  churn_make();
  make_views(&image, churn_start, CHURN_LENGTH);
  rc_open(&nic);
  register_view(ADVERB_VIEW_READ, IBV_ACCESS_REMOTE_READ);
  register_view(ADVERB_VIEW_WRITE, RIGHTS);
}

void end_region(void) {
  deregister_views();
  drop_image(&image);
}

void be_hostile(bool hostile) {
  write_file(PARAMETERS "hostile", hostile ? "1" : "0");
}

long hostile_count(const char* what) {
  char path[128];
  long value = -1;
  snprintf(path, sizeof path, PARAMETERS "%s", what);
  FILE* parameter = fopen(path, "r");
  if (!parameter || fscanf(parameter, "%ld", &value) != 1)
    skip("%s: no soft RNIC", path);
  fclose(parameter);
  return value;
}

long operations(void) {
  const char* asked = getenv("ADVERB_SOFTRNIC_OPERATIONS");
  return asked ? atol(asked) : 2000;
}
