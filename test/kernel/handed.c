// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Descriptors in other hands, passed by SCM_RIGHTS: what only the owner may do, the receiver may
// not; what a dma-buf is for, it may; and whoever lets go first, nothing is left behind.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define LENGTH (16 * PAGE)
#define GIFTS 2 // /dev/adverb and the read view's dma-buf

// What the receiver is told besides; the address is one of the owner's.
struct letter {
  char* start;
  uint32_t region;
  uint64_t table_offset;
  unsigned char pattern[8];
};

static struct image image;
static int ends[2];

static void send_gifts(int end, const struct letter* letter, const int* gifts) {
  union {
    struct cmsghdr header;
    char room[CMSG_SPACE(GIFTS * sizeof(int))];
  } control = {.header = {.cmsg_len = CMSG_LEN(GIFTS * sizeof(int)),
                          .cmsg_level = SOL_SOCKET,
                          .cmsg_type = SCM_RIGHTS}};
  memcpy(CMSG_DATA(&control.header), gifts, GIFTS * sizeof(int));
  struct iovec data = {(void*)letter, sizeof *letter};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  expect(sendmsg(end, &message, 0) == sizeof *letter, "%s", strerror(errno));
}

static struct letter receive_gifts(int end, int* gifts) {
  struct letter letter;
  char control[CMSG_SPACE(GIFTS * sizeof(int))] __attribute__((aligned(8)));
  struct iovec data = {&letter, sizeof letter};
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  expect(recvmsg(end, &message, 0) == sizeof letter, "the owner died early");
  struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  expect(header && header->cmsg_len == CMSG_LEN(GIFTS * sizeof(int)), "no descriptors came");
  memcpy(gifts, CMSG_DATA(header), GIFTS * sizeof(int));
  return letter;
}

static void say(int end) {
  expect(write(end, "g", 1) == 1, "%s", strerror(errno));
}

static void hear(int end) {
  char go;
  expect(read(end, &go, 1) == 1, "the other side died early");
}

// The process that is given the descriptors; it existed before they did, so it inherits nothing.
static pid_t receiver(void (*body)(void)) {
  expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    body();
    _exit(0);
  }
  close(ends[1]);
  return child;
}

// A resident region of this process, both of its descriptors on their way.
static void give(int end) {
  make_image(&image, SOFT, memory(LENGTH), LENGTH);
  fill(image.start, LENGTH, 1);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
  struct letter letter = {
      .start = image.start, .region = image.region, .table_offset = image.view[0].table_offset};
  memcpy(letter.pattern, image.pattern, sizeof letter.pattern);
  send_gifts(end, &letter, (int[GIFTS]){image.adverb, image.view[0].fd});
}

// In the receiver: a device that has imported the dma-buf it was given.
static struct image take(struct letter* letter, int* gifts) {
  struct image other = {.device = open(SOFT, O_RDWR | O_CLOEXEC)};
  *letter = receive_gifts(ends[1], gifts);
  memcpy(other.pattern, letter->pattern, sizeof letter->pattern);
  struct adverb_test_import import = {.slot = 0, .fd = gifts[1]};
  expect(ioctl(other.device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  return other;
}

static void all_well(pid_t child) {
  int status;
  waitpid(child, &status, 0);
  // What went wrong there it has said itself.
  if (status != 0)
    _exit(1);
}

static void may_not(void) {
  int gifts[GIFTS];
  struct letter letter;
  struct adverb_build build;
  struct image other = take(&letter, gifts);
  expect(fault_in_errno(gifts[0], letter.region, letter.start, PAGE, false, NULL) == EPERM,
         "fault-in");
  expect(build_errno(gifts[0], letter.region, letter.start, 0, &build) == EPERM, "build");
  expect(query_errno(gifts[0], letter.region) == EPERM, "query");
  expect(give_back_errno(gifts[0], letter.region, letter.start, 0) == EPERM, "give back");
  expect(destroy_errno(gifts[0], letter.region) == EPERM, "destroy");
  expect(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, gifts[0], (off_t)letter.table_offset) ==
                 MAP_FAILED &&
             errno == EPERM,
         "mapping the table");
  // To be registered by another process is what a dma-buf is for.
  expect(device_word(&other, 5 * PAGE) == 6, "the dma-buf leads elsewhere");
  // The file is as good as any for memory of the receiver's own, which in turn is not the owner's.
  char* own = memory(PAGE);
  uint32_t region = create(gifts[0], own, PAGE);
  expect(build_errno(gifts[0], region, own, 0, &build) == 0, "build");
  fault_in(gifts[0], region, own, PAGE, false);
  expect(write(ends[1], &region, sizeof region) == sizeof region, "%s", strerror(errno));
  hear(ends[1]);
}

static void receiver_may_not(void) {
  pid_t child = receiver(may_not);
  uint32_t region;
  give(ends[0]);
  if (read(ends[0], &region, sizeof region) != sizeof region)
    all_well(child);
  expect(region != image.region, "two regions of one file have one number");
  expect(query_errno(image.adverb, region) == EPERM, "the owner may query the receiver's region");
  expect(destroy_errno(image.adverb, region) == EPERM, "the owner may destroy it");
  say(ends[0]);
  all_well(child);
  expect(query(image.adverb, image.region).resident[0] == LENGTH / PAGE,
         "what the receiver tried had an effect");
  expect(query_errno(image.adverb, region) == EPERM, "the region went before its file");
}

static void lets_go_first(void) {
  int gifts[GIFTS];
  struct letter letter;
  struct image other = take(&letter, gifts);
  expect(device_word(&other, 5 * PAGE) == 6, "before");
}

static void receiver_first(void) {
  pid_t child = receiver(lets_go_first);
  give(ends[0]);
  all_well(child);
  expect(device_word(&image, 5 * PAGE) == 6, "the owner's device lost the region");
  expect(query(image.adverb, image.region).attachments == 2, "%u attachments",
         query(image.adverb, image.region).attachments);
  fault_in(image.adverb, image.region, image.start, LENGTH, true);
}

static void owner_closes(void) {
  int gifts[GIFTS];
  struct letter letter;
  uint64_t word;
  struct image other = take(&letter, gifts);
  say(ends[1]);
  hear(ends[1]); // the owner has closed its descriptors
  expect(device_word(&other, 5 * PAGE) == 6, "the region went with the owner's descriptor");
  say(ends[1]);
  // Its memory is gone: the end of the stream comes after, as descriptors are closed after memory.
  char end;
  expect(read(ends[1], &end, 1) == 0, "the owner lives");
  expect(reads_pattern(&other, 5 * PAGE, &word), "the device reads %#llx of a dead process",
         (unsigned long long)word);
  expect(destroy_errno(gifts[0], letter.region) == EPERM, "the heir may destroy");
  close(gifts[0]);
  close(gifts[1]);
  // Now the device alone holds the region.
  expect(reads_pattern(&other, 5 * PAGE, &word), "after the last descriptor");
}

static void owner_first(void) {
  // The owner is a child of its own, as it has to die while the receiver looks.
  pid_t child = receiver(owner_closes), owner = fork();
  if (owner == 0) {
    give(ends[0]);
    hear(ends[0]);
    drop_image(&image);
    say(ends[0]);
    hear(ends[0]);
    _exit(0);
  }
  close(ends[0]);
  all_well(owner);
  all_well(child);
}

// Open files and dma-bufs of the module, and the modules that use it.
static long holders(void) {
  long count = -1;
  FILE* file = fopen("/sys/module/adverb/refcnt", "r");
  expect(file && fscanf(file, "%ld", &count) == 1, "refcnt");
  fclose(file);
  return count;
}

// Never received; the socket that holds the descriptors is in its own message, too.
static void in_flight(void) {
  int ring[2];
  long before = holders(), after = -1;
  expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ring) == 0, "socketpair");
  give(ring[0]);
  send_gifts(ring[0], &(struct letter){0}, ring);
  drop_image(&image);
  expect(holders() > before, "the descriptors are not on their way");
  close(ring[0]);
  close(ring[1]);
  // The kernel looks for such rings, in the background, when a Unix socket is closed.
  for (int i = 0; i < 12000 && after != before; i++) {
    expect(socketpair(AF_UNIX, SOCK_STREAM, 0, ring) == 0, "socketpair");
    close(ring[0]);
    close(ring[1]);
    usleep(10000);
    after = holders();
  }
  expect(after == before, "%ld hold the module, %ld did before", after, before);
}

int main(int count, char** words) {
  choose(count, words);
  run("SCM_RIGHTS: a receiver can do nothing with the owner's region, but its device can",
      receiver_may_not);
  run("SCM_RIGHTS: a receiver that lets go first takes nothing along", receiver_first);
  run("SCM_RIGHTS: what outlives the owner in other hands reads the pattern", owner_first);
  run("SCM_RIGHTS: descriptors nobody ever received hold nothing", in_flight);
  return verdict();
}
