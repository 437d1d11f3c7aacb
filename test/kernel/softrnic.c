// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A whole RNIC in software (test/vm/rxe) reads and writes a region by reliable connections, while
// its pages come and go in every way there is. Every byte is checked.
//
// A READ may show
//   - what the program had there at some time between its post and its completion;
//   - the region's pattern, but not if the page was resident before and after, in one generation.
// A WRITE has landed if the page was, in the write view; if not, each word is the old or the new.
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "churn.h"
#include "np.h"
#include "rc.h"
#include "rnic.h"

#define OPERATION (16 * 1024UL)
#define OPERATION_PAGES (OPERATION / PAGE + 1)
#define BATCH 8 // operations under way of one queue pair
#define INITIATORS 3

// A READ or a WRITE, and what was known of its pages before it was posted.
struct operation {
  bool write;
  size_t offset;
  size_t length;
  size_t buffer; // offset in the queue pair's
  uint32_t version[OPERATION_PAGES];
  uint64_t word[OPERATION_PAGES];
};

struct thread {
  pthread_t thread;
  struct actor actor;
  void (*act)(struct actor*); // NULL: it reads and writes
  struct rc rc;
  struct operation operations[BATCH];
};

static pthread_barrier_t all_there; // no stack is mapped where pages are moved from
static _Atomic bool stop;
static _Atomic long reads, writes, proven_reads, proven_writes, pattern_words, changed_words,
    left_meanwhile;
static long reads_wanted, writes_wanted;
// Operations.

static size_t page_of(const struct operation* operation, size_t i) {
  return operation->offset / PAGE + i;
}

static size_t pages_of(const struct operation* operation) {
  return (operation->offset + operation->length - 1) / PAGE - operation->offset / PAGE + 1;
}

// Many are of some words, few of many pages.
static void choose_range(struct thread* thread, struct operation* operation) {
  operation->length = 8 * (1 + some(&thread->actor, 1UL << some(&thread->actor, 12)));
  operation->offset = some_page(&thread->actor) * PAGE + 8 * some(&thread->actor, PAGE / 8);
  if (operation->length > CHURN_LENGTH - operation->offset)
    operation->length = CHURN_LENGTH - operation->offset;
}

static void fault_in_pages(const struct operation* operation) {
  int error = fault_in_errno(image.adverb, image.region, image.start + page_of(operation, 0) * PAGE,
                             pages_of(operation) * PAGE, operation->write, NULL);
  // They may leave again and again, or be without rights or addresses for a while.
  if (error != 0 && error != EAGAIN && (error != EFAULT || operation->write))
    fail("fault-in for a %s: %s", operation->write ? "WRITE" : "READ", strerror(error));
}

static void fill_buffer(struct thread* thread, const struct operation* operation) {
  uint64_t* words = (uint64_t*)(thread->rc.buffer + operation->buffer);
  for (size_t offset = operation->offset; offset < operation->offset + operation->length;
       offset += 8)
    *words++ = tag(offset / PAGE, offset % PAGE / 8, churn_pages[offset / PAGE].begun);
}

static void prepare(struct thread* thread, struct operation* operation) {
  size_t count, first, taken;
  choose_range(thread, operation);
  first = page_of(operation, 0);
  count = pages_of(operation);
  operation->write = writes < writes_wanted && rand_r(&thread->actor.seed) & 1;
  if (operation->write) {
    taken = take(first, count);
    operation->write = taken == count;
    if (taken != count)
      give(first, taken);
  }
  if (some(&thread->actor, 4) != 0)
    fault_in_pages(operation);
  for (size_t i = 0; i < count; i++) {
    operation->version[i] = churn_pages[first + i].done;
    operation->word[i] = state_word(&image, operation->write, (first + i) * PAGE);
  }
  if (operation->write) {
    begin(first, count, false, false);
    fill_buffer(thread, operation);
  } else {
    memset(thread->rc.buffer + operation->buffer, 0xee, operation->length);
  }
}

// Whether page i was resident in one generation from before the post to now.
static bool stayed(const struct operation* operation, size_t i) {
  size_t offset = page_of(operation, i) * PAGE;
  uint64_t before = operation->word[i], now = state_word(&image, operation->write, offset);
  bool was = word_says_resident(&image, before, offset);
  if (was && ADVERB_WORD_GENERATION(before) != ADVERB_WORD_GENERATION(now))
    left_meanwhile++;
  return was && word_says_resident(&image, now, offset) &&
         ADVERB_WORD_GENERATION(before) == ADVERB_WORD_GENERATION(now);
}

static bool same_byte(uint64_t one, uint64_t other, int byte) {
  return ((one ^ other) >> (8 * byte) & 0xff) == 0;
}

// Whether each byte is of one of the versions, or zero: a copy that takes bytes may meet a store.
static bool mixed(size_t page, size_t index, uint64_t word, uint32_t from, uint32_t to, bool zero) {
  for (int byte = 0; byte < 8; byte++) {
    bool found = zero && same_byte(word, 0, byte);
    for (uint32_t version = from; !found && version <= to; version++)
      found = same_byte(word, tag(page, index, version), byte);
    if (!found)
      return false;
  }
  return true;
}

static void check_read(struct thread* thread, const struct operation* operation) {
  const uint64_t* words = (const uint64_t*)(thread->rc.buffer + operation->buffer);
  bool all_stayed = true;
  for (size_t i = 0; i < pages_of(operation); i++) {
    size_t page = page_of(operation, i), offset = i == 0 ? operation->offset : page * PAGE;
    size_t stop_at = (page + 1) * PAGE, last = operation->offset + operation->length;
    bool here = stayed(operation, i);
    uint32_t from = operation->version[i], to = churn_pages[page].begun;
    bool zero = from < churn_pages[page].zero_until;
    all_stayed &= here;
    for (; offset < stop_at && offset < last; offset += 8, words++) {
      size_t index = offset % PAGE / 8;
      if (*words == tag(page, index, from))
        continue;
      if (!here && memcmp(words, image.pattern + offset % PAGE, 8) == 0) {
        pattern_words++;
        continue;
      }
      changed_words++;
      if (!mixed(page, index, *words, from, to, zero))
        fail("a READ has wrong bytes: page %zu, word %zu reads %#llx; versions %u to %u%s, %s",
             page, index, (unsigned long long)*words, from, to, zero ? " or zero" : "",
             here ? "resident throughout" : "not resident throughout");
    }
  }
  proven_reads += all_stayed;
  reads++;
}

static void check_write(const struct operation* operation) {
  bool all_stayed = true;
  for (size_t i = 0; i < pages_of(operation); i++) {
    size_t page = page_of(operation, i), offset = i == 0 ? operation->offset : page * PAGE;
    size_t stop_at = (page + 1) * PAGE, last = operation->offset + operation->length;
    bool here = stayed(operation, i);
    uint32_t old = operation->version[i], new = churn_pages[page].begun;
    bool zero = old < churn_pages[page].zero_until;
    all_stayed &= here;
    for (; offset < stop_at && offset < last; offset += 8) {
      size_t index = offset % PAGE / 8;
      uint64_t word = *word_at(page, index);
      if (word != tag(page, index, new) &&
          (here || (word != tag(page, index, old) && !(zero && word == 0))))
        fail("after a WRITE of version %u page %zu has %#llx in word %zu; version %u%s before, %s",
             new, page, (unsigned long long)word, index, old, zero ? " or zero" : "",
             here ? "resident throughout" : "not resident throughout");
    }
    // What was not written, or was lost.
    store_words(page);
  }
  end(page_of(operation, 0), pages_of(operation));
  give(page_of(operation, 0), pages_of(operation));
  proven_writes += all_stayed;
  writes++;
}

static void operate(struct thread* thread) {
  for (size_t i = 0; i < BATCH; i++) {
    thread->operations[i].buffer = i * OPERATION;
    prepare(thread, &thread->operations[i]);
  }
  for (size_t i = 0; i < BATCH; i++) {
    struct operation* operation = &thread->operations[i];
    rc_post(&thread->rc, operation->write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, operation->buffer,
            operation->length, (uintptr_t)image.start + operation->offset,
            regions[operation->write].rkey);
  }
  for (size_t i = 0; i < BATCH; i++) {
    enum ibv_wc_status status = rc_wait(&thread->rc);
    expect(status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(status));
  }
  for (size_t i = 0; i < BATCH; i++) {
    if (thread->operations[i].write)
      check_write(&thread->operations[i]);
    else
      check_read(thread, &thread->operations[i]);
  }
}

static void* run_thread(void* argument) {
  struct thread* thread = argument;
  pthread_barrier_wait(&all_there);
  while (thread->act ? !stop : reads < reads_wanted || writes < writes_wanted) {
    if (thread->act)
      thread->act(&thread->actor);
    else
      operate(thread);
  }
  return NULL;
}

// Tests.

// Pages pinned since boot and still so, of all processes.
static long pinned(void) {
  char line[128];
  long value, sum = 0;
  // Each CPU has a part of the counts, until it is asked for.
  write_file("/proc/sys/vm/stat_refresh", "1");
  FILE* vmstat = fopen("/proc/vmstat", "r");
  expect(vmstat, "/proc/vmstat: %s", strerror(errno));
  while (fgets(line, sizeof line, vmstat)) {
    if (sscanf(line, "nr_foll_pin_acquired %ld", &value) == 1)
      sum += value;
    if (sscanf(line, "nr_foll_pin_released %ld", &value) == 1)
      sum -= value;
  }
  fclose(vmstat);
  return sum;
}

// All of it once more, with nobody about: now the READs have no excuse.
static void read_all(struct rc* rc) {
  for (size_t offset = 0; offset < CHURN_LENGTH; offset += OPERATION) {
    fault_in(image.adverb, image.region, image.start + offset, OPERATION, false);
    rc_post(rc, IBV_WR_RDMA_READ, 0, OPERATION, (uintptr_t)image.start + offset,
            regions[ADVERB_VIEW_READ].rkey);
    enum ibv_wc_status status = rc_wait(rc);
    expect(status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(status));
    expect(memcmp(rc->buffer, image.start + offset, OPERATION) == 0,
           "with nobody about, a READ at %#zx differs from memory", offset);
  }
}

static void run_threads(struct thread* threads, int count) {
  pthread_barrier_init(&all_there, NULL, (unsigned)count);
  for (int i = 0; i < count; i++) {
    int error = pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]);
    expect(error == 0, "thread: %s", strerror(error));
  }
  for (int i = 0; i < count; i++) {
    pthread_join(threads[i].thread, NULL);
    stop = i >= INITIATORS - 1;
  }
}

static void all_at_once(bool with_writes) {
  static void (*const acts[])(struct actor*) = {change, change, move, move, reuse};
  static const enum ibv_mtu mtus[] = {IBV_MTU_1024, IBV_MTU_4096, IBV_MTU_256};
  enum { THREADS = INITIATORS + sizeof acts / sizeof *acts };
  static struct thread threads[THREADS];
  reads_wanted = operations();
  writes_wanted = with_writes ? reads_wanted : 0;
  patience((unsigned)(100 + reads_wanted / 50));
  begin_region();
  for (int i = 0; i < THREADS; i++) {
    threads[i].actor = make_actor((unsigned)i + 1);
    if (i >= INITIATORS)
      threads[i].act = acts[i - INITIATORS];
    else
      rc_connect(&threads[i].rc, &nic, mtus[i], BATCH * OPERATION);
  }
  long own_pins = status_kib("VmPin"), all_pins = pinned();
  run_threads(threads, THREADS);
  read_all(&threads[0].rc);
  expect(status_kib("VmPin") == own_pins && pinned() == all_pins,
         "%ld kB and %ld pages pinned before, %ld and %ld after", own_pins, all_pins,
         status_kib("VmPin"), pinned());
  struct adverb_query now = query(image.adverb, image.region);
  for (int i = 0; i < INITIATORS; i++)
    rc_close(&threads[i].rc);
  end_region();
  note("%ld READs, %ld of them on pages that stayed; %ld WRITEs, %ld; %ld words of the pattern, "
       "%ld of other versions; %ld pages left under an operation; %llu came, %llu left",
       (long)reads, (long)proven_reads, (long)writes, (long)proven_writes, (long)pattern_words,
       (long)changed_words, (long)left_meanwhile, (unsigned long long)now.enter,
       (unsigned long long)now.leave);
  expect(proven_reads > reads / 20 && pattern_words > reads / 20 && left_meanwhile > reads / 1000 &&
             proven_writes >= writes / 20,
         "there was too little to see");
}

static void reads_and_writes(void) {
  be_hostile(false);
  all_at_once(true);
}

static void hostile(bool with_writes) {
  static const char* const counts[] = {"pieces", "repeats", "passed"};
  long before[3];
  be_hostile(true);
  for (int i = 0; i < 3; i++)
    before[i] = hostile_count(counts[i]);
  all_at_once(with_writes);
  for (int i = 0; i < 3; i++)
    expect(hostile_count(counts[i]) > before[i] + reads_wanted / 100, "%s: %ld before, %ld after",
           counts[i], before[i], hostile_count(counts[i]));
}

static void hostile_reads_and_writes(void) {
  hostile(true);
}

static void hostile_reads(void) {
  hostile(false);
}

int main(int count, char** words) {
  choose(count, words);
  run("polite READs and WRITEs move what is there while pages come and go", reads_and_writes);
  run("hostile READs and WRITEs move what is there while pages come and go",
      hostile_reads_and_writes);
  run("hostile READs show what is there while pages come and go", hostile_reads);
  return verdict();
}
