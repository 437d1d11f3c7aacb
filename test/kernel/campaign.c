// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// READs of any size and alignment, by a program that knows nothing of adverb, of memory whose pages
// come and go in every way there is (churn.h). Under backend np the NIC reads what nobody has
// pinned, and adverb asks again for what was away. The program checks every byte:
//
//   - it is of a version that was there between the READ's post and its completion;
//   - a later READ of a queue pair shows no older version than an earlier one (of a polite RNIC);
//   - a WRITE with a fence behind a READ, from the bytes that the READ fills, carries what it
//   shows.
//
// A READ may fail only if a page of it was without rights meanwhile (adverb-differences(7)).
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "churn.h"
#include "np.h"
#include "rc.h"
#include "rnic.h"

#define LONGEST (16 * 1024UL)
#define SLOT (LONGEST + 64) // of a READ, which may begin at any byte
#define READ_PAGES (LONGEST / PAGE + 2)
#define BATCH 8 // READs under way of one queue pair, each with a WRITE behind it at most
#define READERS 3
#define ORDER_WORDS 64 // of a READ, compared with those of later ones

// A READ, and what was known of its pages before it was posted.
struct reading {
  size_t offset; // in the churned memory
  size_t length;
  size_t buffer; // offset in the queue pair's buffer, and in its mirror
  bool mirrored;
  enum ibv_wc_status status;
  uint32_t version[READ_PAGES];
  uint32_t without_rights[READ_PAGES];
};

struct thread {
  pthread_t thread;
  struct actor actor;
  void (*act)(struct actor*); // NULL: it reads
  enum ibv_mtu mtu;
  struct rc rc;
  char* mirror; // what WRITEs bring back
  struct ibv_mr* mirror_mr;
  struct reading readings[BATCH];
};

static struct ibv_mr* churned;
static pthread_barrier_t all_there; // no stack is mapped where pages are moved from
static _Atomic bool stop;
static _Atomic long reads, failures, mirrored, changed_bytes, later_versions;
static long reads_wanted;
static bool in_order; // the RNIC does READs in the order of their posts

static size_t page_of(const struct reading* reading, size_t i) {
  return reading->offset / PAGE + i;
}

static size_t pages_of(const struct reading* reading) {
  return (reading->offset + reading->length - 1) / PAGE - reading->offset / PAGE + 1;
}

// Many are of some bytes, few of many pages.
static void choose_range(struct actor* actor, struct reading* reading) {
  reading->length = 1 + some(actor, 1UL << some(actor, 15));
  reading->offset = some_page(actor) * PAGE + some(actor, PAGE);
  if (reading->length > CHURN_LENGTH - reading->offset)
    reading->length = CHURN_LENGTH - reading->offset;
}

// Every other one reads what the one before it does, so that their order can be seen.
static void prepare(struct thread* thread, struct reading* reading) {
  struct actor* actor = &thread->actor;
  if (reading != thread->readings && some(actor, 2) == 0) {
    reading->length = reading[-1].length;
    reading->offset = reading[-1].offset;
  } else {
    choose_range(actor, reading);
  }
  reading->buffer = (size_t)(reading - thread->readings) * SLOT + some(actor, 64);
  reading->mirrored = some(actor, 2) == 0;
  memset(thread->rc.buffer + reading->buffer, 0xee, reading->length);
  for (size_t i = 0; i < pages_of(reading); i++) {
    reading->without_rights[i] = churn_pages[page_of(reading, i)].without_rights;
    reading->version[i] = churn_pages[page_of(reading, i)].done;
  }
}

static void post(struct thread* thread, const struct reading* reading) {
  struct ibv_sge sge = {.addr = (uintptr_t)thread->rc.buffer + reading->buffer,
                        .length = (uint32_t)reading->length,
                        .lkey = thread->rc.mr->lkey};
  struct ibv_send_wr write = {
      .sg_list = &sge,
      .num_sge = 1,
      .opcode = IBV_WR_RDMA_WRITE,
      .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
      .wr.rdma = {.remote_addr = (uintptr_t)thread->mirror + reading->buffer,
                  .rkey = thread->mirror_mr->rkey}};
  struct ibv_send_wr read = {
      .next = reading->mirrored ? &write : NULL,
      .sg_list = &sge,
      .num_sge = 1,
      .opcode = IBV_WR_RDMA_READ,
      .send_flags = IBV_SEND_SIGNALED,
      .wr.rdma = {.remote_addr = (uintptr_t)churn_start + reading->offset, .rkey = churned->rkey}};
  struct ibv_send_wr* bad;
  int error = ibv_post_send(thread->rc.qp, &read, &bad);
  expect(error == 0, "post: %s", strerror(error));
}

// Whether the byte of this word is of one of the versions, or a zero that may be there.
static bool of_some_version(size_t page, size_t index, unsigned byte, unsigned char value,
                            uint32_t from, uint32_t to, bool zero) {
  bool found = zero && value == 0;
  for (uint32_t version = from; !found && version <= to; version++)
    found = (unsigned char)(tag(page, index, version) >> (8 * byte)) == value;
  return found;
}

static void check_bytes(const struct thread* thread, const struct reading* reading) {
  const unsigned char* bytes = (unsigned char*)thread->rc.buffer + reading->buffer;
  size_t offset = reading->offset, end = reading->offset + reading->length;
  for (size_t i = 0; i < pages_of(reading); i++) {
    size_t page = page_of(reading, i);
    uint32_t from = reading->version[i], to = churn_pages[page].begun;
    bool zero = from < churn_pages[page].zero_until;
    for (; offset < (page + 1) * PAGE && offset < end; offset++, bytes++) {
      size_t index = offset % PAGE / 8;
      unsigned byte = offset % 8;
      if (*bytes == (unsigned char)(tag(page, index, from) >> (8 * byte)))
        continue;
      changed_bytes++;
      if (!of_some_version(page, index, byte, *bytes, from, to, zero))
        fail("a READ of %zu bytes at %#zx has a wrong byte: page %zu, byte %zu is %#x; "
             "versions %u to %u%s",
             reading->length, reading->offset, page, offset % PAGE, *bytes, from, to,
             zero ? " or zero" : "");
    }
  }
}

// The version of the word there if it is a whole one of the READ's; 0 otherwise.
static uint32_t version_at(const struct thread* thread, const struct reading* reading,
                           size_t offset) {
  uint64_t word;
  size_t page = offset / PAGE, index = offset % PAGE / 8;
  if (offset < reading->offset || offset + 8 > reading->offset + reading->length)
    return 0;
  memcpy(&word, thread->rc.buffer + reading->buffer + (offset - reading->offset), 8);
  uint32_t version = word & 0x7ffffff;
  bool possible =
      version >= reading->version[page - page_of(reading, 0)] && version <= churn_pages[page].begun;
  return word == tag(page, index, version) && possible ? version : 0;
}

static void check_order(const struct thread* thread, const struct reading* one,
                        const struct reading* later) {
  size_t offset = ((one->offset > later->offset ? one->offset : later->offset) + 7) & ~7UL;
  for (size_t i = 0; i < ORDER_WORDS; i++, offset += 8) {
    uint32_t before = version_at(thread, one, offset), after = version_at(thread, later, offset);
    if (before == 0 || after == 0)
      continue;
    later_versions += after > before;
    if (after < before)
      fail("the later of two READs is older: page %zu, word %zu is of version %u, then of %u",
           offset / PAGE, offset % PAGE / 8, before, after);
  }
}

static void check_mirror(const struct thread* thread, const struct reading* reading) {
  const char* shown = thread->rc.buffer + reading->buffer;
  const char* carried = thread->mirror + reading->buffer;
  for (size_t i = 0; i < reading->length; i++)
    if (shown[i] != carried[i])
      fail("behind a READ of %zu bytes at %#zx a WRITE with a fence carried %#x for byte %zu, "
           "which is %#x",
           reading->length, reading->offset, (unsigned char)carried[i], i, (unsigned char)shown[i]);
  mirrored++;
}

static bool lacked_rights(const struct reading* reading) {
  for (size_t i = 0; i < pages_of(reading); i++)
    if (reading->without_rights[i] % 2 != 0 ||
        churn_pages[page_of(reading, i)].without_rights != reading->without_rights[i])
      return true;
  return false;
}

static void connect_pair(struct thread* thread) {
  rc_connect(&thread->rc, &nic, thread->mtu, BATCH * SLOT);
}

// Waits for the batch. A failure flushes what is behind it, and costs the queue pair.
static void await_batch(struct thread* thread) {
  bool failed = false;
  for (size_t i = 0; i < BATCH; i++) {
    struct reading* reading = &thread->readings[i];
    enum ibv_wc_status status = rc_wait(&thread->rc), write = IBV_WC_SUCCESS;
    if (reading->mirrored)
      write = rc_wait(&thread->rc);
    reading->status = status != IBV_WC_SUCCESS ? status : write;
    if (failed) {
      expect(status == IBV_WC_WR_FLUSH_ERR, "behind a failure: %s", ibv_wc_status_str(status));
    } else if (status != IBV_WC_SUCCESS) {
      failed = true;
      failures++;
      expect(status == IBV_WC_REM_ACCESS_ERR && lacked_rights(reading),
             "a READ of %zu bytes at %#zx: %s", reading->length, reading->offset,
             ibv_wc_status_str(status));
    } else {
      expect(write == IBV_WC_SUCCESS, "a WRITE: %s", ibv_wc_status_str(write));
    }
  }
}

static void read_batch(struct thread* thread) {
  bool whole = true;
  for (size_t i = 0; i < BATCH; i++) {
    prepare(thread, &thread->readings[i]);
    post(thread, &thread->readings[i]);
  }
  await_batch(thread);
  for (size_t i = 0; i < BATCH; i++) {
    struct reading* reading = &thread->readings[i];
    if (reading->status != IBV_WC_SUCCESS) {
      whole = false;
      continue;
    }
    check_bytes(thread, reading);
    if (reading->mirrored)
      check_mirror(thread, reading);
    for (size_t before = 0; in_order && before < i; before++)
      check_order(thread, &thread->readings[before], reading);
    reads++;
  }
  if (!whole) {
    rc_close(&thread->rc);
    connect_pair(thread);
  }
}

static void* run_thread(void* argument) {
  struct thread* thread = argument;
  pthread_barrier_wait(&all_there);
  while (thread->act ? !stop : reads < reads_wanted) {
    if (thread->act)
      thread->act(&thread->actor);
    else
      read_batch(thread);
  }
  return NULL;
}

// With nobody about, the memory is read as it is.
static void read_all(struct thread* thread) {
  for (size_t offset = 0; offset < CHURN_LENGTH; offset += LONGEST) {
    rc_post(&thread->rc, IBV_WR_RDMA_READ, 0, LONGEST, (uintptr_t)churn_start + offset,
            churned->rkey);
    enum ibv_wc_status status = rc_wait(&thread->rc);
    expect(status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(status));
    expect(memcmp(thread->rc.buffer, churn_start + offset, LONGEST) == 0,
           "with nobody about, a READ at %#zx differs from memory", offset);
  }
}

static void make_reader(struct thread* thread, enum ibv_mtu mtu) {
  thread->mtu = mtu;
  connect_pair(thread);
  thread->mirror = memory(BATCH * SLOT);
  thread->mirror_mr = ibv_reg_mr(nic.pd, thread->mirror, BATCH * SLOT, RIGHTS);
  expect(thread->mirror_mr, "registering a mirror: %s", strerror(errno));
}

static void end_reader(struct thread* thread) {
  rc_close(&thread->rc);
  ibv_dereg_mr(thread->mirror_mr);
}

static void run_threads(struct thread* threads, unsigned count) {
  pthread_barrier_init(&all_there, NULL, count);
  for (unsigned i = 0; i < count; i++) {
    int error = pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]);
    expect(error == 0, "thread: %s", strerror(error));
  }
  for (unsigned i = 0; i < count; i++) {
    pthread_join(threads[i].thread, NULL);
    stop = i >= READERS - 1;
  }
}

static void campaign(bool hostile) {
  static void (*const acts[])(struct actor*) = {change, move, move, reuse};
  static const enum ibv_mtu mtus[READERS] = {IBV_MTU_1024, IBV_MTU_4096, IBV_MTU_256};
  enum { THREADS = READERS + sizeof acts / sizeof *acts };
  static struct thread threads[THREADS];
  const char* seed = getenv("ADVERB_CAMPAIGN_SEED");
  be_hostile(hostile);
  in_order = !hostile;
  reads_wanted = operations();
  patience((unsigned)(100 + reads_wanted / 20));
  churn_make();
  rc_open(&nic);
  churned = ibv_reg_mr(nic.pd, churn_start, CHURN_LENGTH, IBV_ACCESS_REMOTE_READ);
  expect(churned, "registering the memory: %s", strerror(errno));
  for (unsigned i = 0; i < THREADS; i++) {
    threads[i].actor = make_actor((seed ? (unsigned)atoi(seed) : 0) * THREADS + i + 1);
    if (i >= READERS)
      threads[i].act = acts[i - READERS];
    else
      make_reader(&threads[i], mtus[i]);
  }
  run_threads(threads, THREADS);
  read_all(&threads[0]);
  long pinned = status_kib("VmPin");
  for (int i = 0; i < READERS; i++)
    end_reader(&threads[i]);
  expect(ibv_dereg_mr(churned) == 0, "ibv_dereg_mr: %s", strerror(errno));
  expect(changed_bytes > reads / 20 && mirrored > reads / 4 &&
             (hostile || reads < 4000 || later_versions > 0) &&
             (failures > 0) == !churn_rights_stay,
         "there was too little to see: %ld bytes changed, %ld carried back, %ld words newer, %ld "
         "failed",
         (long)changed_bytes, (long)mirrored, (long)later_versions, (long)failures);
  note("%ld READs, %ld failed; %ld carried back; %ld bytes of other versions; %ld words newer in a "
       "later READ; %ld KiB pinned in the end",
       (long)reads, (long)failures, (long)mirrored, (long)changed_bytes, (long)later_versions,
       pinned);
}

static void polite(void) {
  churn_rights_stay = true;
  campaign(false);
}

static void hostile(void) {
  churn_rights_stay = true;
  campaign(true);
}

static void without_rights(void) {
  campaign(true);
}

int main(int count, char** words) {
  choose(count, words);
  run("READs show what is there while pages come and go: polite RNIC", polite);
  run("READs show what is there while pages come and go: hostile RNIC", hostile);
  run("READs show what is there, or fail, while rights are taken away", without_rights);
  return verdict();
}
