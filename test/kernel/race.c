// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Everything at once: threads that fault in, take pages away, attach and detach, make and destroy
// regions, use a device, and fork; and processes that end in the midst of it. In the end the books
// must balance. What else there is to see, the kernel sees: this is for the debug kernel
// (scripts/debug-kernel), for minutes; elsewhere seconds do.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"
#define EDU "/dev/adverb_test_edu"
#define LENGTH (16 * MIB)
#define SPAN 64 // pages a step takes at most

// Missing in the headers of Debian 12.
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static struct image image;
static volatile bool stop;

struct actor {
  pthread_t thread;
  unsigned seed;
  char* spare; // SPAN pages of its own, where mremap moves to
};

struct range {
  char* at;
  size_t length;
};

// None of the threads may call malloc, which could map what mremap has just left.
static struct range some(struct actor* actor) {
  size_t pages = image.length / PAGE, count = (size_t)rand_r(&actor->seed) % SPAN + 1;
  size_t page = (size_t)rand_r(&actor->seed) % (pages - count);
  return (struct range){image.start + page * PAGE, count * PAGE};
}

// Of a region, pages of which may be missing, or leave again and again.
static void fault_in_some(uint32_t region, struct range range, bool write) {
  int error = fault_in_errno(image.adverb, region, range.at, range.length, write, NULL);
  if (error != 0 && error != EAGAIN && error != EFAULT)
    fail("fault-in: %s", strerror(error));
}

static void fault_in_pages(struct actor* actor) {
  struct range range = some(actor);
  fault_in_some(image.region, range, rand_r(&actor->seed) & 1);
}

static void map_anew(struct range range) {
  if (mmap(range.at, range.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
           -1, 0) == MAP_FAILED)
    fail("mmap: %s", strerror(errno));
}

// A range that has become several mappings, or has a hole, stays where it is.
static void move_away_and_back(struct range range, char* to) {
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
  if (mremap(range.at, range.length, range.length, flags, to) == MAP_FAILED)
    return;
  if (mremap(to, range.length, range.length, flags, range.at) == MAP_FAILED)
    map_anew(range);
}

static void take_away(struct actor* actor) {
  static const int advice[] = {MADV_DONTNEED, MADV_FREE,       MADV_PAGEOUT, MADV_COLD,
                               MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_COLLAPSE};
  struct range range = some(actor);
  switch (rand_r(&actor->seed) % 6) {
  case 0:
    mprotect(range.at, range.length, PROT_READ);
    mprotect(range.at, range.length, PROT_READ | PROT_WRITE);
    break;
  case 1:
    map_anew(range);
    break;
  case 2:
    munmap(range.at, range.length);
    map_anew(range);
    break;
  case 3:
    move_away_and_back(range, actor->spare);
    break;
  default:
    // What one of them refuses is no matter.
    madvise(range.at, range.length,
            advice[(size_t)rand_r(&actor->seed) % (sizeof advice / sizeof *advice)]);
  }
}

// A fresh dma-buf of a view, imported by a device and let go.
static void attach_and_detach(const char* name, int view) {
  struct adverb_build build;
  if (build_errno(image.adverb, image.region, image.start, view, &build) != 0)
    fail("build: %s", strerror(errno));
  int device = open(name, O_RDWR | O_CLOEXEC);
  struct adverb_test_import import = {.slot = (unsigned)view, .fd = build.fd};
  if (device < 0 || ioctl(device, ADVERB_TEST_IMPORT, &import) != 0)
    fail("import by %s: %s", name, strerror(errno));
  close(build.fd);
  close(device);
}

static void attach_soft(struct actor* actor) {
  attach_and_detach(SOFT, rand_r(&actor->seed) & 1);
}

// Through an IOMMU, where attaching maps, and shows pages that come and go meanwhile.
static void attach_edu(struct actor* actor) {
  attach_and_detach(EDU, rand_r(&actor->seed) & 1);
}

// A region over the same pages that ends before or after its dma-buf.
static void make_and_destroy(struct actor* actor) {
  struct range range = some(actor);
  struct adverb_build build;
  int view = rand_r(&actor->seed) & 1;
  bool close_first = rand_r(&actor->seed) & 1;
  uint32_t region = create(image.adverb, range.at, range.length);
  if (build_errno(image.adverb, region, range.at, view, &build) != 0)
    fail("build: %s", strerror(errno));
  fault_in_some(region, range, view);
  if (close_first)
    close(build.fd);
  if (destroy_errno(image.adverb, region) != 0)
    fail("destroy: %s", strerror(errno));
  if (!close_first)
    close(build.fd);
}

static void use_device(struct actor* actor) {
  size_t offset = (size_t)rand_r(&actor->seed) % (image.length / PAGE) * PAGE;
  device_word(&image, offset);
  device_store(&image, offset, 1);
  query(image.adverb, image.region);
}

// A child shares all pages until one of the two writes.
static void fork_and_write(struct actor* actor) {
  struct range range = some(actor);
  pid_t child = fork();
  if (child == 0) {
    // A hole ends it just as well.
    for (size_t i = 0; i < range.length; i += PAGE)
      range.at[i] = 1;
    _exit(0);
  }
  if (child < 0)
    fail("fork: %s", strerror(errno));
  waitpid(child, NULL, 0);
}

static void (*const acts[])(struct actor*) = {fault_in_pages, fault_in_pages,   take_away,
                                              take_away,      attach_soft,      attach_edu,
                                              use_device,     make_and_destroy, fork_and_write};
#define ACTORS (sizeof acts / sizeof *acts)
static struct actor actors[ACTORS];

static void* act(void* argument) {
  struct actor* actor = argument;
  void (*step)(struct actor*) = acts[actor - actors];
  while (!stop && (step != attach_edu || access(EDU, R_OK) == 0))
    step(actor);
  return NULL;
}

static void start(size_t length, unsigned seed) {
  make_image(&image, SOFT, memory(length), length);
  for (size_t i = 0; i < ACTORS; i++) {
    actors[i].seed = seed * (unsigned)ACTORS + (unsigned)i;
    actors[i].spare = memory(SPAN * PAGE);
  }
  for (size_t i = 0; i < ACTORS; i++) {
    int error = pthread_create(&actors[i].thread, NULL, act, &actors[i]);
    expect(error == 0, "thread: %s", strerror(error));
  }
}

// A process that does all of it on its own, and ends with every thread in the midst of something.
static void live_and_die(unsigned number) {
  struct timespec life = {.tv_nsec = (long)(number * 37 % 200) * 1000000};
  start(4 * MIB, number + 1);
  nanosleep(&life, NULL);
  switch (number % 3) {
  case 0:
    kill(getpid(), SIGKILL);
    break;
  case 1:
    execl("/bin/true", "true", (char*)NULL);
    break;
  }
  _exit(0);
}

// The worker may still be bringing pages back, and counts them one after the other.
static bool books_balance(struct adverb_query* now) {
  for (int tries = 0; tries < 1000; tries++) {
    *now = query(image.adverb, image.region);
    if (now->enter - now->leave == now->resident[0] + now->resident[1])
      return true;
    usleep(10000);
  }
  return false;
}

static void races(void) {
  const char* asked = getenv("ADVERB_RACE_SECONDS");
  unsigned seconds = asked ? (unsigned)atoi(asked) : 10, deaths = 0;
  struct adverb_query now;
  int status;
  patience(seconds + 100);
  start(LENGTH, 0);
  for (time_t end = time(NULL) + seconds; time(NULL) < end; deaths++) {
    pid_t child = fork();
    if (child == 0)
      live_and_die(deaths);
    expect(child > 0 && waitpid(child, &status, 0) == child, "fork: %s", strerror(errno));
    expect(status == (deaths % 3 == 0 ? SIGKILL : 0), "process %u ended with status %#x", deaths,
           (unsigned)status);
  }
  stop = true;
  for (size_t i = 0; i < ACTORS; i++)
    pthread_join(actors[i].thread, NULL);
  bool balance = books_balance(&now);
  expect(balance, "%llu - %llu came and left, %llu + %llu are here", (unsigned long long)now.enter,
         (unsigned long long)now.leave, (unsigned long long)now.resident[0],
         (unsigned long long)now.resident[1]);
  expect(now.enter > 1000 && now.leave > 1000 && deaths > 0, "%llu came, %llu left, %u processes",
         (unsigned long long)now.enter, (unsigned long long)now.leave, deaths);
  note("%u s: %llu pages came, %llu left, %llu brought back, %u processes ended", seconds,
       (unsigned long long)now.enter, (unsigned long long)now.leave, (unsigned long long)now.remaps,
       deaths);
}

int main(int count, char** words) {
  choose(count, words);
  run("racing threads and dying processes keep the books", races);
  return verdict();
}
