// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Devices that go while a region is in their hands: unbound from their driver, or unplugged.
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define NIC "/dev/adverb_test_nic"
#define LENGTH (64 * PAGE)

static struct image image;
static char slot[32]; // edu's address on the bus

// The address of the device that a test driver has.
static void find(const char* driver, char* address) {
  char pattern[128];
  glob_t found;
  snprintf(pattern, sizeof pattern, "/sys/bus/pci/drivers/%s/0000:*", driver);
  expect(glob(pattern, 0, NULL, &found) == 0, "%s has no device", driver);
  snprintf(address, sizeof slot, "%s", strrchr(found.gl_pathv[0], '/') + 1);
  globfree(&found);
}

static void tell(const char* path, const char* text) {
  int fd = open(path, O_WRONLY);
  expect(fd >= 0 && write(fd, text, strlen(text)) > 0, "%s: %s", path, strerror(errno));
  close(fd);
}

static void unbind(void) {
  tell("/sys/bus/pci/drivers/adverb_test_edu/unbind", slot);
}

static void bind(void) {
  tell("/sys/bus/pci/drivers/adverb_test_edu/bind", slot);
}

static int open_device(const char* path) {
  int device = open(path, O_RDWR | O_CLOEXEC);
  // devtmpfs has the new node a moment later.
  for (int i = 0; i < 1000 && device < 0; i++) {
    usleep(1000);
    device = open(path, O_RDWR | O_CLOEXEC);
  }
  expect(device >= 0, "%s: %s", path, strerror(errno));
  return device;
}

static void take(int device, int view) {
  struct adverb_test_import import = {.slot = (unsigned)view, .fd = image.view[view].fd};
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
}

static void resident_image(void) {
  find("adverb_test_edu", slot);
  make_image(&image, EDU, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  expect(device_word(&image, 5 * PAGE) == 6, "resident at first");
}

static void no_device_left(void) {
  uint64_t word;
  expect(device_read_errno(&image, 0, &word, 8) == ENODEV, "the device is still there");
  expect(query(image.adverb, image.region).attachments == 0, "%u attachments stayed",
         query(image.adverb, image.region).attachments);
}

// The owner goes on as if there had never been a device, and a device may come again.
static void region_is_usable(void) {
  uint64_t before = generation(&image, 1, 5 * PAGE);
  expect(resident(&image, 1, 5 * PAGE), "pages left with the device");
  expect(madvise(image.start + 5 * PAGE, PAGE, MADV_DONTNEED) == 0, "madvise");
  expect(generation(&image, 1, 5 * PAGE) > before, "the tables stand still");
  *(uint64_t*)(image.start + 5 * PAGE) = 50;
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
}

static void device_comes_again(void) {
  int old = image.device;
  image.device = open_device(EDU);
  take(image.device, 0);
  take(image.device, 1);
  expect(device_word(&image, 5 * PAGE) == 50, "the device that came again reads other bytes");
  device_store(&image, 6 * PAGE, 60);
  expect(*(uint64_t*)(image.start + 6 * PAGE) == 60, "its write was lost");
  // The file of the device that went is still open.
  close(old);
  expect(device_word(&image, 5 * PAGE) == 50, "closing the old file took something from the new");
}

static void unbound(void) {
  resident_image();
  unbind();
  no_device_left();
  region_is_usable();
  bind();
  device_comes_again();
}

// The table of IOVAs is shared by devices of one IOMMU group, and edu has made it.
static void unplugged(void) {
  static unsigned char frame[ADVERB_TEST_FRAME];
  struct adverb_test_frames frames = {
      .read = {.count = 1, .offset = 7 * PAGE, .data = (uintptr_t)frame}};
  char other[32], path[96], groups[2][256] = {"", ""};
  resident_image();
  find("adverb_test_nic", other);
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/iommu_group", i ? other : slot);
    expect(readlink(path, groups[i], sizeof groups[i] - 1) > 0, "%s: %s", path, strerror(errno));
  }
  expect(strcmp(groups[0], groups[1]) == 0, "%s and %s are not of one group", slot, other);
  int nic = open_device(NIC);
  take(nic, 0);
  expect(query(image.adverb, image.region).attachments == 3, "attachments");
  snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/remove", slot);
  tell(path, "1");
  uint64_t word;
  expect(device_read_errno(&image, 0, &word, 8) == ENODEV, "the device is still there");
  expect(query(image.adverb, image.region).attachments == 1, "attachments");
  region_is_usable();
  expect(ioctl(nic, ADVERB_TEST_FRAMES, &frames) == 0 && *(uint64_t*)frame == 8,
         "the other device lost the region");
  munmap(image.start + 7 * PAGE, PAGE);
  expect(ioctl(nic, ADVERB_TEST_FRAMES, &frames) == 0, "%s", strerror(errno));
  expect(memcmp(frame, image.pattern + 0, sizeof frame) == 0, "it still reads what was unmapped");
  close(nic);
  expect(query(image.adverb, image.region).attachments == 0, "attachments");
  tell("/sys/bus/pci/rescan", "1");
  device_comes_again();
}

// A NIC whose driver says that it has so few bits of address that edu's are beyond them.
static void beyond_its_reach(void) {
  resident_image();
  expect(system("modprobe adverb_test_nic address_bits=24") == 0, "modprobe");
  int nic = open_device(NIC);
  struct adverb_test_import import = {.slot = 0, .fd = image.view[0].fd};
  uint64_t refused = query(image.adverb, image.region).refused;
  expect(image.address[0] >> 24, "edu has %#llx", (unsigned long long)image.address[0]);
  expect(ioctl(nic, ADVERB_TEST_IMPORT, &import) != 0 && errno == EOPNOTSUPP, "errno %d", errno);
  expect(query(image.adverb, image.region).refused == refused + 1, "not counted");
  expect(query(image.adverb, image.region).attachments == 2, "attachments");
  close(image.device);
  // Now the range is made for it.
  expect(ioctl(nic, ADVERB_TEST_IMPORT, &import) == 0 && !(import.address >> 24), "%s, %#llx",
         strerror(errno), (unsigned long long)import.address);
}

static volatile bool stop;

static void* churn(void* argument) {
  (void)argument;
  while (!stop) {
    madvise(image.start, LENGTH, MADV_DONTNEED);
    fill(image.start, LENGTH, 1);
    fault_in_errno(image.adverb, image.region, image.start, LENGTH, true, NULL);
  }
  return NULL;
}

static void comes_and_goes(void) {
  pthread_t thread;
  resident_image();
  pthread_create(&thread, NULL, churn, NULL);
  uint64_t before = query(image.adverb, image.region).leave;
  for (int round = 0; round < 20; round++) {
    unbind();
    no_device_left();
    bind();
    close(image.device);
    image.device = open_device(EDU);
    take(image.device, 0);
    take(image.device, 1);
  }
  stop = true;
  pthread_join(thread, NULL);
  expect(query(image.adverb, image.region).leave > before, "no page moved meanwhile");
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  expect(device_word(&image, 5 * PAGE) == 6, "the device reads other bytes at last");
}

int main(int count, char** words) {
  choose(count, words);
  if (count > 1 && strcmp(words[1], "beyond") == 0) {
    run("addresses of its group that are beyond a device are refused", beyond_its_reach);
    return verdict();
  }
  run("unbind: the attachment goes with the device, the region stays", unbound);
  run("unbind and bind, over and over, while pages come and go", comes_and_goes);
  run("unplug: a device of the same IOMMU group keeps the region", unplugged);
  return verdict();
}
