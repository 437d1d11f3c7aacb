// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a soft RNIC (test/vm/rxe) does with a region's views, and what it refuses, step by step.
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "churn.h"
#include "np.h"
#include "rc.h"
#include "rnic.h"

#define ORDER_WORDS 64

static void expect_words(const struct rc* rc, size_t number, uint64_t wanted, const char* what) {
  const uint64_t* words = (const uint64_t*)(rc->buffer + number * PAGE);
  for (size_t i = 0; i < ORDER_WORDS; i++)
    expect(words[i] == wanted, "%s has %llu in word %zu, not %llu", what,
           (unsigned long long)words[i], i, (unsigned long long)wanted);
}

// Two READs, a WRITE, two READs; the buffer's page 0 is written, and they read into those behind
// it.
static void hostile_order(void) {
  static const enum ibv_wr_opcode opcodes[] = {
      IBV_WR_RDMA_READ, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_READ};
  static struct rc rc;
  const size_t length = ORDER_WORDS * 8;
  be_hostile(true);
  long before = hostile_count("passed");
  begin_region();
  memset(image.start, 0, length);
  fault_in(image.adverb, image.region, image.start, PAGE, true);
  rc_connect(&rc, &nic, IBV_MTU_256, 5 * PAGE);
  for (uint64_t round = 1; round <= (uint64_t)operations() / 4; round++) {
    for (size_t i = 0; i < ORDER_WORDS; i++)
      ((uint64_t*)rc.buffer)[i] = round;
    for (size_t i = 0, reads_so_far = 0; i < 5; i++) {
      bool write = opcodes[i] == IBV_WR_RDMA_WRITE;
      rc_post(&rc, opcodes[i], write ? 0 : ++reads_so_far * PAGE, length, (uintptr_t)image.start,
              regions[write].rkey);
    }
    for (size_t i = 0; i < 5; i++)
      expect(rc_wait(&rc) == IBV_WC_SUCCESS, "request %zu failed", i);
    expect_words(&rc, 1, round - 1, "the READ before a WRITE");
    expect_words(&rc, 2, round - 1, "the READ before a WRITE");
    expect_words(&rc, 3, round, "the READ after a WRITE");
    expect_words(&rc, 4, round, "the READ after a WRITE");
  }
  expect(hostile_count("passed") > before, "no READ has passed another");
  rc_close(&rc);
  end_region();
}

// One request with a fresh connection, as the refused ones end theirs.
static enum ibv_wc_status try_one(enum ibv_wr_opcode opcode, size_t offset, uint32_t rkey,
                                  uint64_t* word) {
  struct rc rc;
  enum ibv_wc_status status;
  rc_connect(&rc, &nic, IBV_MTU_1024, PAGE);
  memcpy(rc.buffer, word, sizeof *word);
  if (opcode != IBV_WR_ATOMIC_WRITE)
    rc_post(&rc, opcode, 0, sizeof *word, (uintptr_t)image.start + offset, rkey);
  else if (!rc_post_atomic_write(&rc, (uintptr_t)image.start + offset, rkey))
    skip("this machine's librxe has no atomic writes");
  status = rc_wait(&rc);
  memcpy(word, rc.buffer, sizeof *word);
  rc_close(&rc);
  return status;
}

static void expect_refused(enum ibv_wr_opcode opcode, size_t offset, uint32_t rkey,
                           const char* what) {
  uint64_t word = 1;
  enum ibv_wc_status status = try_one(opcode, offset, rkey, &word);
  expect(status == IBV_WC_REM_ACCESS_ERR, "%s: %s", what, ibv_wc_status_str(status));
}

static void only_reads_and_writes(void) {
  struct rc_region other;
  uint64_t word = tag(1, 1, 1);
  int error;
  begin_region();
  fault_in(image.adverb, image.region, image.start, CHURN_LENGTH, true);
  error = rc_register_errno(&nic, image.view[1].fd, 0, CHURN_LENGTH, 0,
                            RIGHTS | IBV_ACCESS_REMOTE_ATOMIC, &other);
  expect(error == EOPNOTSUPP, "registering for atomics: %s", strerror(error));
  error = rc_register_errno(&nic, churn_file, 0, PAGE, 0, RIGHTS, &other);
  expect(error == EINVAL, "registering what is no dma-buf: %s", strerror(error));
  error = rc_register_errno(&nic, image.view[1].fd, PAGE, CHURN_LENGTH, 0, RIGHTS, &other);
  expect(error == EINVAL, "registering beyond the end: %s", strerror(error));
  error = rc_change_access_errno(&nic, &regions[1], RIGHTS | IBV_ACCESS_REMOTE_ATOMIC);
  expect(error == EOPNOTSUPP, "giving it other rights: %s", strerror(error));
  expect_refused(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, regions[1].rkey, "an atomic");
  expect_refused(IBV_WR_RDMA_READ, CHURN_LENGTH, regions[0].rkey, "a READ beyond the end");
  expect_refused(IBV_WR_RDMA_WRITE, 0, regions[0].rkey, "a WRITE without rights");
  expect(try_one(IBV_WR_RDMA_READ, PAGE + 8, regions[0].rkey, &word) == IBV_WC_SUCCESS &&
             word == tag(1, 1, 1),
         "a READ after all that has %#llx", (unsigned long long)word);
  end_region();
}

static void no_atomic_writes(void) {
  begin_region();
  fault_in(image.adverb, image.region, image.start, CHURN_LENGTH, true);
  expect_refused(IBV_WR_ATOMIC_WRITE, 0, regions[1].rkey, "an atomic write");
  expect(*word_at(0, 0) == tag(0, 0, 1), "the word is %#llx", (unsigned long long)*word_at(0, 0));
  end_region();
}

// A device that writes into a read view, whose MR says it may.
static void read_views_stay_read_only(void) {
  begin_region();
  fault_in(image.adverb, image.region, image.start, CHURN_LENGTH, true);
  expect(rc_deregister_errno(&nic, &regions[0]) == 0, "deregistering: %s", strerror(errno));
  register_view(ADVERB_VIEW_READ, RIGHTS);
  expect_refused(IBV_WR_RDMA_WRITE, 0, regions[0].rkey, "a WRITE into the read view");
  expect(*word_at(0, 0) == tag(0, 0, 1), "the word is %#llx", (unsigned long long)*word_at(0, 0));
  end_region();
}

// One that the kernel has made of a memfd's pages.
static void no_other_dmabufs(void) {
  struct rc_region region;
  struct udmabuf_create create = {.size = PAGE, .flags = UDMABUF_FLAGS_CLOEXEC};
  int maker = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), memfd, dmabuf;
  if (maker < 0)
    skip("/dev/udmabuf: %s", strerror(errno));
  memfd = memfd_create("other", MFD_ALLOW_SEALING);
  expect(memfd >= 0 && ftruncate(memfd, PAGE) == 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) == 0,
         "memfd: %s", strerror(errno));
  create.memfd = (uint32_t)memfd;
  dmabuf = ioctl(maker, UDMABUF_CREATE, &create);
  expect(dmabuf >= 0, "udmabuf: %s", strerror(errno));
  rc_open(&nic);
  int error = rc_register_errno(&nic, dmabuf, 0, PAGE, 0, RIGHTS, &region);
  expect(error == EINVAL, "registering another's dma-buf: %s", strerror(error));
}

// A part of the dma-buf, under another address, which is the same within a page.
static void parts(void) {
  struct rc_region part;
  uint64_t word = 0;
  begin_region();
  fault_in(image.adverb, image.region, image.start, CHURN_LENGTH, true);
  uint64_t address = (uintptr_t)churn_start + CHURN_HALF + 64;
  int error = rc_register_errno(&nic, image.view[0].fd, 5 * PAGE + 64, PAGE, address,
                                IBV_ACCESS_REMOTE_READ, &part);
  expect(error == 0, "registering a part: %s", strerror(error));
  expect(try_one(IBV_WR_RDMA_READ, CHURN_HALF + 72, part.rkey, &word) == IBV_WC_SUCCESS &&
             word == tag(5, 9, 1),
         "word 9 of page 5 reads %#llx", (unsigned long long)word);
  expect(try_one(IBV_WR_RDMA_READ, CHURN_HALF + PAGE, part.rkey, &word) == IBV_WC_SUCCESS &&
             word == tag(6, 0, 1),
         "word 0 of page 6 reads %#llx", (unsigned long long)word);
  expect_refused(IBV_WR_RDMA_READ, CHURN_HALF + PAGE + 64, part.rkey, "a READ beyond the part");
  error = rc_deregister_errno(&nic, &part);
  expect(error == 0, "deregistering the part: %s", strerror(error));
  end_region();
}

// The program lets go of the region first, as it should: the RNIC's keys lead nowhere then.
static void nothing_after_destroy(void) {
  uint64_t word = 1, pattern;
  begin_region();
  fault_in(image.adverb, image.region, image.start, CHURN_LENGTH, true);
  expect(destroy_errno(image.adverb, image.region) == 0, "destroy: %s", strerror(errno));
  expect(try_one(IBV_WR_RDMA_WRITE, 8, regions[1].rkey, &word) == IBV_WC_SUCCESS, "WRITE refused");
  expect(*word_at(0, 1) == tag(0, 1, 1), "a WRITE landed in the program's memory");
  expect(try_one(IBV_WR_RDMA_READ, 8, regions[0].rkey, &word) == IBV_WC_SUCCESS, "READ refused");
  memcpy(&pattern, image.pattern + 8, sizeof pattern);
  expect(word == pattern, "a READ shows %#llx", (unsigned long long)word);
  end_region();
}

int main(int count, char** words) {
  choose(count, words);
  run("a soft RNIC refuses what it cannot keep, and what is not its", only_reads_and_writes);
  run("a soft RNIC refuses atomic writes", no_atomic_writes);
  run("a soft RNIC refuses dma-bufs of others", no_other_dmabufs);
  run("a soft RNIC cannot write into a read view", read_views_stay_read_only);
  run("a part of a dma-buf is read under an address of its own", parts);
  run("a soft RNIC reaches nothing of a region that is gone", nothing_after_destroy);
  run("a hostile READ passes READs, and no WRITE", hostile_order);
  return verdict();
}
