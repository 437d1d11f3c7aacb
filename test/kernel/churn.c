// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "churn.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS (PAGE / 8)
#define SPAN 8 // pages an act changes at most
#define HOT 16 // pages at the start of each half
#define TWINS 64

struct churn_page churn_pages[CHURN_PAGES];
char* churn_start;
int churn_file;
bool churn_rights_stay;

uint64_t tag(size_t page, size_t index, uint32_t version) {
  return 0xad5eULL << 48 | (uint64_t)page << 36 | (uint64_t)index << 27 | version;
}

volatile uint64_t* word_at(size_t page, size_t index) {
  return (volatile uint64_t*)(churn_start + page * PAGE) + index;
}

static bool is_anonymous(size_t page) {
  return page < CHURN_HALF / PAGE;
}

size_t take(size_t first, size_t count) {
  size_t n = 0;
  while (n < count && first + n < CHURN_PAGES && is_anonymous(first + n) == is_anonymous(first) &&
         !atomic_flag_test_and_set(&churn_pages[first + n].taken))
    n++;
  return n;
}

void give(size_t first, size_t count) {
  for (size_t page = first; page < first + count; page++)
    atomic_flag_clear(&churn_pages[page].taken);
}

void begin(size_t first, size_t count, bool zero, bool stays) {
  for (size_t page = first; page < first + count; page++) {
    uint32_t version = churn_pages[page].done + 1;
    if (zero)
      churn_pages[page].zero_until = version + stays;
    churn_pages[page].begun = version;
  }
}

void store_words(size_t page) {
  for (size_t index = 0; index < WORDS; index++)
    *word_at(page, index) = tag(page, index, churn_pages[page].begun);
}

void end(size_t first, size_t count) {
  for (size_t page = first; page < first + count; page++)
    churn_pages[page].done = churn_pages[page].begun;
}

void churn_make(void) {
  char* start = memory(CHURN_LENGTH + CHURN_HALF);
  churn_start = (char*)(((uintptr_t)start + CHURN_HALF - 1) / CHURN_HALF * CHURN_HALF);
  churn_file = memfd_create("churn", 0);
  if (churn_file < 0 || ftruncate(churn_file, (off_t)CHURN_HALF) != 0 ||
      mmap(churn_start + CHURN_HALF, CHURN_HALF, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           churn_file, 0) == MAP_FAILED)
    fail("memfd: %s", strerror(errno));
  begin(0, CHURN_PAGES, false, false);
  for (size_t page = 0; page < CHURN_PAGES; page++)
    store_words(page);
  end(0, CHURN_PAGES);
}

struct actor make_actor(unsigned seed) {
  struct actor actor = {.seed = seed, .spare = memory(SPAN * PAGE), .twins = memory(TWINS * PAGE)};
  madvise(actor.twins, TWINS * PAGE, MADV_MERGEABLE);
  return actor;
}

size_t some(struct actor* actor, size_t count) {
  return (size_t)rand_r(&actor->seed) % count;
}

size_t some_page(struct actor* actor) {
  if (some(actor, 4) == 0)
    return some(actor, CHURN_PAGES);
  return some(actor, 2) * (CHURN_HALF / PAGE) + some(actor, HOT);
}

static void empty(size_t first, size_t count) {
  char* start = churn_start + first * PAGE;
  if (madvise(start, count * PAGE, is_anonymous(first) ? MADV_DONTNEED : MADV_REMOVE) != 0)
    fail("emptying %zu pages: %s", count, strerror(errno));
}

static void map_anew(size_t first, size_t count) {
  char* start = churn_start + first * PAGE;
  void* again = is_anonymous(first)
                    ? mmap(start, count * PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
                    : mmap(start, count * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                           churn_file, (off_t)(first * PAGE - CHURN_HALF));
  if (again == MAP_FAILED)
    fail("mmap: %s", strerror(errno));
}

// Lazily freed: what is there stays, or is zeros from some time on, until the next store.
static void free_lazily(size_t first, size_t count) {
  for (size_t page = first; page < first + count; page++)
    churn_pages[page].zero_until = churn_pages[page].done + 1;
  madvise(churn_start + first * PAGE, count * PAGE, MADV_FREE);
}

void change(struct actor* actor) {
  size_t first = some_page(actor), count = take(first, 1 + some(actor, SPAN));
  bool store = true;
  switch (some(actor, 8)) {
  case 0:
  case 1:
    begin(first, count, true, false);
    if (count != 0)
      empty(first, count);
    break;
  case 2:
    begin(first, count, true, true);
    if (count != 0)
      empty(first, count);
    store = false;
    break;
  case 3:
  case 4:
    begin(first, count, true, false);
    if (count != 0)
      map_anew(first, count);
    break;
  case 5:
    if (count != 0 && is_anonymous(first)) {
      free_lazily(first, count);
      give(first, count);
      return;
    }
    begin(first, count, false, false);
    break;
  default:
    begin(first, count, false, false);
  }
  for (size_t page = first; store && page < first + count; page++)
    store_words(page);
  end(first, count);
  give(first, count);
}

// A child shares all pages until one of the two stores.
static void fork_and_store(struct actor* actor) {
  size_t first = some(actor, CHURN_HALF / PAGE - SPAN);
  pid_t child = fork();
  if (child == 0) {
    for (size_t page = first; page < first + SPAN; page++)
      *word_at(page, 0) = 1;
    _exit(0);
  }
  if (child < 0)
    fail("fork: %s", strerror(errno));
  waitpid(child, NULL, 0);
}

static void move_to_a_node(struct actor* actor, size_t first, size_t count) {
  void* addresses[SPAN];
  int nodes[SPAN], status[SPAN], node = rand_r(&actor->seed) & 1;
  for (size_t i = 0; i < count; i++) {
    addresses[i] = churn_start + (first + i) * PAGE;
    nodes[i] = node;
  }
  // A page that is busy, or a kernel without nodes, stays as it is.
  syscall(SYS_move_pages, 0, count, addresses, nodes, status, 2 /* MPOL_MF_MOVE */);
}

// mremap that refuses may have unmapped its target already, and others may be mapped there by now.
static void own_spare(struct actor* actor) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  if (mmap(actor->spare, SPAN * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
    actor->spare = memory(SPAN * PAGE);
}

// Leaves no address free, where something else might be mapped: meanwhile there are zeros.
static void move_away_and_back(struct actor* actor, size_t first, size_t count) {
  char* start = churn_start + first * PAGE;
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  begin(first, count, true, false);
  // What has become several mappings stays where it is.
  if (mremap(start, count * PAGE, count * PAGE, flags, actor->spare) == MAP_FAILED)
    own_spare(actor);
  else if (mremap(actor->spare, count * PAGE, count * PAGE, flags, start) == MAP_FAILED)
    fail("mremap back: %s", strerror(errno));
  for (size_t page = first; page < first + count; page++)
    store_words(page);
  end(first, count);
}

// A copy of a page, with which the kernel may merge it (KSM).
static void make_twin(struct actor* actor) {
  size_t page = some(actor, CHURN_HALF / PAGE);
  madvise(churn_start, CHURN_HALF, MADV_MERGEABLE);
  if (take(page, 1) == 0)
    return;
  memcpy(actor->twins + some(actor, TWINS) * PAGE, churn_start + page * PAGE, PAGE);
  give(page, 1);
}

static void take_rights(size_t first, size_t count, int rights) {
  char* start = churn_start + first * PAGE;
  for (size_t page = first; page < first + count; page++)
    churn_pages[page].without_rights++;
  mprotect(start, count * PAGE, rights);
  for (int i = 0; i < 50; i++)
    sched_yield();
  mprotect(start, count * PAGE, PROT_READ | PROT_WRITE);
  for (size_t page = first; page < first + count; page++)
    churn_pages[page].without_rights++;
}

// What one of these refuses is no matter.
void move(struct actor* actor) {
  size_t first = some_page(actor), kind = some(actor, 64);
  size_t count = 1 + some(actor, SPAN);
  char* start = churn_start + first * PAGE;
  if (count > CHURN_PAGES - first)
    count = CHURN_PAGES - first;
  if (kind == 0) {
    fork_and_store(actor);
  } else if (kind == 1) {
    madvise(churn_start + (first & 512) * PAGE, CHURN_HALF, MADV_COLLAPSE);
  } else if (kind < 16) {
    move_to_a_node(actor, first, count);
  } else if (kind < 24) {
    madvise(start, count * PAGE, MADV_COLD);
  } else if (kind < 32 && !is_anonymous(first)) {
    madvise(start, count * PAGE, MADV_DONTNEED);
  } else if (kind < 40) {
    madvise(start, count * PAGE, MADV_PAGEOUT);
  } else if (kind < 44) {
    make_twin(actor);
  } else {
    count = take(first, count);
    if (count != 0 && kind < 52)
      move_away_and_back(actor, first, count);
    else if (count != 0 && !churn_rights_stay)
      take_rights(first, count, kind < 58 ? PROT_READ : PROT_NONE);
    give(first, count);
  }
}

void reuse(struct actor* actor) {
  memset(actor->spare, 0xbd, SPAN * PAGE);
  madvise(actor->spare, SPAN * PAGE, MADV_DONTNEED);
}
