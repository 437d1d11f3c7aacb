// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Whether a device could attach, asked beforehand.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "np.h"

#define EDU_DRIVER "adverb_test_edu"
#define EXTENT (2 * MIB)

static int adverb;
static uint32_t region;
static char* start;

static void small_region(void) {
  adverb = open_adverb();
  start = memory(EXTENT);
  struct adverb_region_create argument = {
      .start = (uintptr_t)start, .length = EXTENT, .extent_shift = 21};
  expect(ioctl(adverb, ADVERB_IOC_REGION_CREATE, &argument) == 0, "%s", strerror(errno));
  region = argument.region;
}

static int check(const char* device, char* reason) {
  return device_check_errno(adverb, region, start, ADVERB_VIEW_READ, device, reason);
}

static void good_device(void) {
  char reason[ADVERB_REASON_SIZE];
  struct adverb_build build;
  struct adverb_query_extent extent;
  small_region();
  expect(check(pci_device(EDU_DRIVER, "0000:00"), reason) == ENXIO, "nothing is built");
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  uint64_t charged = query(adverb, region).charged_pages;
  for (int i = 0; i < 100; i++) {
    int error = check(pci_device(EDU_DRIVER, "0000:00"), reason);
    expect(error == 0 && reason[0] == 0, "%s: \"%s\"", strerror(error), reason);
  }
  expect(query_extent_errno(adverb, region, start, &extent) == 0 && extent.mappings == 0,
         "%u mappings stay", extent.mappings);
  expect(query(adverb, region).charged_pages == charged, "charges stay");
  expect(query(adverb, region).refused == 0, "refusals are counted");
  // What it says is so.
  struct adverb_test_import import = {.fd = build.fd};
  int device = open("/dev/" EDU_DRIVER, O_RDWR);
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  expect(query_extent_errno(adverb, region, start, &extent) == 0 && extent.mappings == 1,
         "%u mappings with a device", extent.mappings);
  expect(check(pci_device(EDU_DRIVER, "0000:00"), reason) == 0, "while it is attached");
  expect(query_extent_errno(adverb, region, start, &extent) == 0 && extent.mappings == 1,
         "the device's own went");
  // What nobody uses can be given back: a check leaves no user behind.
  close(device);
  close(build.fd);
  expect(give_back_errno(adverb, region, start, ADVERB_VIEW_READ) == 0, "give back");
}

static void no_device(void) {
  char reason[ADVERB_REASON_SIZE];
  struct adverb_build build;
  small_region();
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  expect(check("", reason) == ENODEV, "no name");
  expect(check("0000:77:00.0", reason) == ENODEV, "no such device");
  expect(check("0000:00:00.0", reason) == ENODEV, "a bridge that no driver has");
  struct adverb_device_check argument = {.address = (uintptr_t)start, .region = region};
  memset(argument.device, 'x', sizeof argument.device);
  expect(ioctl(adverb, ADVERB_IOC_DEVICE_CHECK, &argument) != 0 && errno == EINVAL, "no end");
  argument.device[0] = 0;
  argument.reserved = 1;
  expect(ioctl(adverb, ADVERB_IOC_DEVICE_CHECK, &argument) != 0 && errno == EINVAL, "reserved");
}

static void* ask_often(void* argument) {
  char reason[ADVERB_REASON_SIZE];
  for (int i = 0; i < 50; i++) {
    int error = check(pci_device(EDU_DRIVER, "0000:00"), reason);
    expect(error == 0, "check %d: %s", i, strerror(error));
  }
  return argument;
}

// EBUSY is for a device whose driver changes, not for one that somebody else asks about.
static void both_are_answered(void) {
  struct adverb_build build;
  pthread_t other;
  small_region();
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  pthread_create(&other, NULL, ask_often, NULL);
  ask_often(NULL);
  pthread_join(other, NULL);
}

// Entries that are made for a disk are a nuisance to its user, so not everybody may have them made.
static void other_users(void) {
  char reason[ADVERB_REASON_SIZE];
  struct adverb_build build;
  small_region();
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  const char* edu = pci_device(EDU_DRIVER, "0000:00");
  expect(check(edu, reason) == 0, "root");
  expect(setresuid(1000, 1000, 1000) == 0, "%s", strerror(errno));
  expect(check(edu, reason) == EPERM, "an ordinary user");
  expect(check("0000:77:00.0", reason) == ENODEV, "of what is not there");
}

static void caches_translations(void) {
  char reason[ADVERB_REASON_SIZE];
  struct adverb_build build;
  small_region();
  expect(build_errno(adverb, region, start, ADVERB_VIEW_READ, &build) == 0, "build");
  int error = check(pci_device("virtio-pci", "0000:01"), reason);
  expect(error == EOPNOTSUPP, "%s", strerror(error));
  expect(strstr(reason, "(ATS)"), "the reason told is \"%s\"", reason);
  struct adverb_query told = query(adverb, region);
  expect(told.refused == 1 && strcmp(told.reason, reason) == 0, "the query tells \"%s\"",
         told.reason);
}

int main(int count, char** words) {
  choose(count, words);
  run("a device that could attach is told apart, and nothing stays of it", good_device);
  run("what is not there cannot be asked for", no_device);
  run("two who ask at the same time are both answered", both_are_answered);
  run("of what is no RDMA device only administrators may ask", other_users);
  run("a device that caches translations (ATS) is refused", caches_translations);
  return verdict();
}
