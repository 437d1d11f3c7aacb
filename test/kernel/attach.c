// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A device that attaches a whole extent makes a quarter of a million IOMMU entries, and takes them
// away when it lets go. Nobody waits for all of that: no thread that wants the CPU, and no other
// device.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define NIC "/dev/adverb_test_nic"
#define GIB (1UL << 30)
#define ROUNDS 20
#define PERIOD 1000 // microseconds
#define SHARE 20    // a twentieth of the time at most

static volatile bool going_on; // what of the whole extent nobody shall wait for
static volatile bool stop;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static struct adverb_build built(int adverb, char* start, size_t length) {
  struct adverb_build build;
  uint32_t region = create(adverb, start, length);
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  return build;
}

static void import(int device, int fd) {
  struct adverb_test_import argument = {.slot = 0, .fd = fd};
  expect(ioctl(device, ADVERB_TEST_IMPORT, &argument) == 0, "import of %d: %s", fd,
         strerror(errno));
}

// What a thread has waited at most beyond its period, or for its own device, of what it began
// meanwhile; and how often it has begun.
static volatile double longest, sum;
static volatile unsigned long waits;
static volatile unsigned long turns;

static void note_wait(bool during, double waited) {
  if (during) {
    longest = waited > longest ? waited : longest;
    sum += waited;
    waits++;
  }
  turns++;
}

// Imports it, or lets go of it, while others look how long they wait. Returns how long it took, in
// microseconds.
static double import_watched(int device, int fd) {
  double start = now();
  going_on = true;
  import(device, fd);
  double took = now() - start;
  going_on = false;
  for (unsigned long before = turns; turns - before < 2;)
    sched_yield(); // until the other has done what it began meanwhile
  return took;
}

static double attach_whole(int device, int fd) {
  double took = import_watched(device, fd);
  import(device, -1);
  return took;
}

// Returns how long the attach took: letting go is so short, half a millisecond on a quick machine,
// that a thread which merely wakes up late would seem to have waited for a good part of it.
static double detach_whole(int device, int fd) {
  double start = now();
  import(device, fd);
  double took = now() - start;
  import_watched(device, -1);
  return took;
}

static void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  expect(sched_setaffinity(0, sizeof set, &set) == 0, "CPU %d: %s", cpu, strerror(errno));
}

// Goes before all others on its CPU, where the kernel lets it.
static void* wants_the_cpu(void* argument) {
  const struct sched_param first = {.sched_priority = 50};
  const struct timespec period = {.tv_nsec = PERIOD * 1000};
  run_on(0);
  expect(sched_setscheduler(0, SCHED_FIFO, &first) == 0, "SCHED_FIFO: %s", strerror(errno));
  while (!stop) {
    bool during = going_on;
    double start = now();
    clock_nanosleep(CLOCK_MONOTONIC, 0, &period, NULL);
    note_wait(during, now() - start - PERIOD);
  }
  return argument;
}

// A device of another domain, which attaches a few pages again and again. What it takes at least is
// not waiting.
static void* attaches_pages(void* argument) {
  int adverb = open_adverb(), device = open(NIC, O_RDWR | O_CLOEXEC);
  struct adverb_build build = built(adverb, memory(16 * PAGE), 16 * PAGE);
  expect(device >= 0, "%s: %s", NIC, strerror(errno));
  double least = 1e9;
  run_on(1);
  while (!stop) {
    bool during = going_on;
    double start = now();
    import(device, build.fd);
    double took = now() - start;
    least = took < least ? took : least;
    note_wait(during, took - least);
    import(device, -1);
  }
  return argument;
}

// Nobody waits for more than a twentieth of an attach. The best of some rounds, as others on this
// machine may be in the way. `whole_extent` returns how long the attach took, in microseconds.
static void nobody_waits(double (*whole_extent)(int device, int fd), void* (*other)(void*),
                         bool on_average, const char* who) {
  int adverb = open_adverb(), device = open(EDU, O_RDWR | O_CLOEXEC);
  pthread_t thread;
  double best = 1e9, waited = 0, whole = 0;
  char* start = mmap((void*)(1UL << 40), GIB, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  expect(start != MAP_FAILED && device >= 0, "%s", strerror(errno));
  struct adverb_build build = built(adverb, start, GIB);
  pthread_create(&thread, NULL, other, NULL);
  run_on(0);
  for (int round = 0; round < ROUNDS; round++) {
    longest = sum = 0;
    waits = 0;
    double took = whole_extent(device, build.fd);
    double most = on_average && waits > 0 ? sum / (double)waits : longest;
    if (most > 0 && most / took < best) {
      best = most / took;
      waited = most;
      whole = took;
    }
  }
  stop = true;
  pthread_join(thread, NULL);
  expect(best <= 1.0 / SHARE, "%s waits %.1f of %.1f ms", who, waited / 1e3, whole / 1e3);
  note("%s waits %.1f of %.1f ms", who, waited / 1e3, whole / 1e3);
}

static void threads_run(void) {
  nobody_waits(attach_whole, wants_the_cpu, false, "a thread that goes before it");
}
static void devices_attach(void) {
  // Emulated IOMMUs of one machine wait for each other, too: so not each single time.
  nobody_waits(attach_whole, attaches_pages, true, "another device");
}
static void threads_run_at_its_end(void) {
  nobody_waits(detach_whole, wants_the_cpu, false, "a thread that goes before it");
}

int main(int count, char** words) {
  choose(count, words);
  run("others run while a device attaches a GiB", threads_run);
  run("another device attaches while one attaches a GiB", devices_attach);
  run("others run while a device lets go of a GiB", threads_run_at_its_end);
  return verdict();
}
