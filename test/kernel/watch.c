// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Changes of mappings, told to who watches them.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define LENGTH (16 * PAGE)
#define LONG_WAIT 50000 // ms, of a call that nobody answers; no test lasts as long

static int monitor;
static char* start;

static void begin(unsigned wait_ms) {
  struct adverb_monitor_begin argument = {.wait_ms = wait_ms};
  monitor = open_adverb();
  expect(ioctl(monitor, ADVERB_IOC_MONITOR, &argument) == 0, "monitor: %s", strerror(errno));
}

static uint32_t watch(const void* from, size_t length) {
  struct adverb_watch argument = {.start = (uintptr_t)from, .length = length};
  expect(ioctl(monitor, ADVERB_IOC_WATCH, &argument) == 0, "watch: %s", strerror(errno));
  return argument.watch;
}

static int unwatch_errno(uint32_t number) {
  struct adverb_unwatch argument = {.watch = number};
  return ioctl(monitor, ADVERB_IOC_UNWATCH, &argument) == 0 ? 0 : errno;
}

static int heard_errno(uint64_t number) {
  struct adverb_heard argument = {.number = number};
  return ioctl(monitor, ADVERB_IOC_HEARD, &argument) == 0 ? 0 : errno;
}

static bool told(void) {
  struct pollfd one = {.fd = monitor, .events = POLLIN};
  return poll(&one, 1, 0) == 1 && one.revents == POLLIN;
}

// The next change; a test to which none is told fails.
static struct adverb_change next(void) {
  struct adverb_change change;
  expect(told(), "nothing is told");
  expect(read(monitor, &change, sizeof change) == sizeof change, "read: %s", strerror(errno));
  return change;
}

static void expect_change(const char* what, const char* from, const char* to, unsigned kind) {
  struct adverb_change change = next();
  expect(change.start <= (uintptr_t)from && change.end >= (uintptr_t)to && change.kind == kind,
         "%s: %#llx to %#llx, kind %u", what, (unsigned long long)change.start,
         (unsigned long long)change.end, change.kind);
  while (told()) // some calls do it in parts
    next();
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

// Without waiting: each kind of call, in a process of one thread.
static void calls_are_told(void) {
  char *other = memory(LENGTH), *from, *to;
  begin(0);
  start = memory(4 * LENGTH);
  from = start + LENGTH;
  to = from + LENGTH;
  fill(start, 4 * LENGTH, 1);
  uint32_t number = watch(from, LENGTH);
  expect(!told(), "watching is no change");
  expect(madvise(start, LENGTH, MADV_DONTNEED) == 0 && munmap(start, LENGTH) == 0 &&
             mprotect(to, PAGE, PROT_READ) == 0 && munmap(to + PAGE, PAGE) == 0,
         "beside it");
  expect(!told(), "what lies beside it is told");
  expect(madvise(from, PAGE, MADV_DONTNEED) == 0, "DONTNEED");
  expect_change("MADV_DONTNEED", from, from + PAGE, ADVERB_CHANGE_CLEARED);
  *from = 1;
  expect(madvise(from, PAGE, MADV_FREE) == 0, "FREE");
  expect_change("MADV_FREE", from, from + PAGE, ADVERB_CHANGE_CLEARED);
  expect(mprotect(from, PAGE, PROT_READ) == 0, "mprotect");
  expect_change("mprotect", from, from + PAGE, ADVERB_CHANGE_PROTECTED);
  expect(mmap(from + PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
             from + PAGE,
         "mmap over it");
  expect_change("MAP_FIXED", from + PAGE, from + 2 * PAGE, ADVERB_CHANGE_UNMAPPED);
  expect(mremap(from + 4 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other,
         "mremap: %s", strerror(errno));
  expect_change("mremap", from + 4 * PAGE, from + 5 * PAGE, ADVERB_CHANGE_UNMAPPED);
  expect(munmap(from, 3 * LENGTH) == 0, "munmap");
  expect_change("munmap", from, to, ADVERB_CHANGE_UNMAPPED);
  // It is the addresses that are watched, whatever comes to them.
  char* again = mmap(from, LENGTH, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  expect(again == from && !told(), "mapping where nothing is");
  fill(from, LENGTH, 1);
  expect(munmap(from, PAGE) == 0, "munmap");
  expect_change("munmap of what came later", from, from + PAGE, ADVERB_CHANGE_UNMAPPED);
  expect(unwatch_errno(number) == 0 && unwatch_errno(number) == ENOENT, "unwatch");
  expect(munmap(from + PAGE, LENGTH - PAGE) == 0 && !told(), "what is not watched any more");
}

// Files, which a userfaultfd does not hear of.
static void files_are_told(void) {
  int file = memfd_create("np", 0);
  expect(ftruncate(file, LENGTH) == 0, "ftruncate");
  start = mapped(LENGTH, MAP_SHARED, file);
  fill(start, LENGTH, 1);
  begin(0);
  watch(start, LENGTH);
  expect(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * PAGE, PAGE) == 0, "hole");
  expect_change("a hole", start + 2 * PAGE, start + 3 * PAGE, ADVERB_CHANGE_CLEARED);
  expect(madvise(start + 4 * PAGE, PAGE, MADV_REMOVE) == 0, "REMOVE: %s", strerror(errno));
  expect_change("MADV_REMOVE", start + 4 * PAGE, start + 5 * PAGE, ADVERB_CHANGE_CLEARED);
  pid_t child = fork();
  if (child == 0) { // by another process, which does not even have it mapped
    munmap(start, LENGTH);
    _exit(ftruncate(file, LENGTH / 2) != 0);
  }
  int status;
  expect(waitpid(child, &status, 0) == child && status == 0, "the other's ftruncate");
  expect_change("ftruncate by another", start + LENGTH / 2, start + LENGTH, ADVERB_CHANGE_CLEARED);
  expect(*(uint64_t*)start == 1, "page 0");
}

// A worker of the kernel's, which serves more than this process: a disk over the mapped file is
// told that blocks of it are of no use any more.
static void kernels_workers_do_not_wait(void) {
  int file = memfd_create("np", 0), control = open("/dev/loop-control", O_RDWR);
  char name[32];
  expect(ftruncate(file, LENGTH) == 0, "ftruncate");
  start = mapped(LENGTH, MAP_SHARED, file);
  fill(start, LENGTH, 1);
  expect(control >= 0, "/dev/loop-control: %s", strerror(errno));
  int number = ioctl(control, LOOP_CTL_GET_FREE);
  snprintf(name, sizeof name, "/dev/loop%d", number);
  int disk = open(name, O_RDWR);
  struct loop_config config = {.fd = (unsigned)file, .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
  expect(disk >= 0 && ioctl(disk, LOOP_CONFIGURE, &config) == 0, "%s: %s", name, strerror(errno));
  begin(LONG_WAIT);
  watch(start, LENGTH);
  uint64_t hole[2] = {2 * PAGE, PAGE};
  double before = seconds();
  expect(ioctl(disk, BLKDISCARD, hole) == 0, "BLKDISCARD: %s", strerror(errno));
  expect(seconds() - before < LONG_WAIT / 2e3, "the worker waited");
  expect_change("a hole", start + 2 * PAGE, start + 3 * PAGE, ADVERB_CHANGE_CLEARED);
  expect(*(uint64_t*)(start + 2 * PAGE) == 0, "there is no hole");
}

// What the kernel does by itself changes nothing that is there.
static void upkeep_is_not_told(void) {
  start = memory(LENGTH);
  fill(start, LENGTH, 1);
  begin(0);
  watch(start, LENGTH);
  expect(madvise(start, LENGTH, MADV_PAGEOUT) == 0, "PAGEOUT: %s", strerror(errno));
  pid_t child = fork(); // write-protects all of it
  if (child == 0)
    _exit(0);
  waitpid(child, NULL, 0);
  struct adverb_change change = {0};
  while (told()) { // PAGEOUT is a call of the owner's own, in which reclaim is done
    change = next();
    expect(change.kind != ADVERB_CHANGE_PROTECTED && change.kind != ADVERB_CHANGE_UNMAPPED,
           "%#llx to %#llx, kind %u", (unsigned long long)change.start,
           (unsigned long long)change.end, change.kind);
  }
  for (size_t at = 0; at < LENGTH; at += PAGE)
    expect(*(uint64_t*)(start + at) == at / PAGE + 1, "page %zu", at / PAGE);
}

static volatile bool gone_on;

static void* unmap_it(void* argument) {
  expect(munmap(start, PAGE) == 0, "munmap");
  gone_on = true;
  return argument;
}

static void await_change(void) {
  struct pollfd one = {.fd = monitor, .events = POLLIN};
  expect(poll(&one, 1, -1) == 1, "poll: %s", strerror(errno));
}

// Whoever changes something goes on when that has been heard of, and not before.
static void caller_waits(void) {
  pthread_t thread;
  begin(LONG_WAIT);
  start = memory(LENGTH);
  fill(start, LENGTH, 1);
  watch(start, LENGTH);
  pthread_create(&thread, NULL, unmap_it, NULL);
  await_change();
  struct adverb_change change = next();
  usleep(100000); // it could go on for as long
  expect(!gone_on, "it did not wait");
  // The lock of the address space is nobody's meanwhile.
  char* other = memory(PAGE);
  expect(munmap(other, PAGE) == 0, "munmap elsewhere");
  expect(heard_errno(change.number + 1) == EINVAL, "what was never told");
  expect(heard_errno(change.number) == 0, "heard");
  pthread_join(thread, NULL);
}

// Nor for ever, nor for who closes the descriptor, nor by the reader itself.
static void waiting_ends(void) {
  pthread_t thread;
  double before;
  start = memory(LENGTH);
  fill(start, LENGTH, 1);
  begin(300);
  watch(start, LENGTH);
  before = seconds();
  unmap_it(NULL);
  expect(seconds() - before >= 0.25, "it went on after %.3f s", seconds() - before);
  next();
  // Once, whatever a call has changed.
  begin(300);
  char* many = memory(64 * PAGE);
  fill(many, 64 * PAGE, 1);
  for (size_t page = 0; page < 64; page += 2) // mappings of their own
    expect(mprotect(many + page * PAGE, PAGE, PROT_READ) == 0, "mprotect");
  watch(many, 64 * PAGE);
  before = seconds();
  expect(madvise(many, 64 * PAGE, MADV_DONTNEED) == 0, "DONTNEED");
  expect(seconds() - before < 3, "it waited %.1f s for 64 mappings", seconds() - before);
  // Closing a copy of the descriptor closes nothing.
  expect(close(dup(monitor)) == 0, "dup");
  before = seconds();
  expect(munmap(many, PAGE) == 0, "munmap");
  expect(seconds() - before >= 0.25, "it went on after %.3f s", seconds() - before);
  // This thread has read, so nobody could answer it.
  begin(LONG_WAIT);
  watch(start + PAGE, LENGTH - PAGE);
  expect(fcntl(monitor, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  struct adverb_change change;
  expect(read(monitor, &change, sizeof change) < 0 && errno == EAGAIN, "nothing was told yet");
  before = seconds();
  expect(munmap(start + PAGE, PAGE) == 0, "munmap");
  expect(seconds() - before < LONG_WAIT / 2e3, "the reader waited for itself");
  // Closed by its owner, while a child still has it.
  int pipes[2];
  expect(pipe(pipes) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    char byte;
    close(pipes[1]);
    _exit(read(pipes[0], &byte, 1) != 0);
  }
  // A child that has the owner's memory, and closes what it got of the owner's descriptors.
  pid_t other = vfork();
  if (other == 0) {
    close(monitor);
    _exit(0);
  }
  waitpid(other, NULL, 0);
  start += 2 * PAGE;
  gone_on = false;
  pthread_create(&thread, NULL, unmap_it, NULL);
  await_change();
  usleep(50000);
  expect(!gone_on, "a child's close() let it go on");
  expect(close(monitor) == 0, "close");
  pthread_join(thread, NULL);
  close(pipes[1]);
  waitpid(child, NULL, 0);
}

// Who waits can be killed.
static void caller_is_killed(void) {
  int pipes[2];
  char byte = 0;
  expect(pipe(pipes) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    begin(LONG_WAIT);
    start = memory(LENGTH);
    fill(start, LENGTH, 1);
    watch(start, LENGTH);
    if (write(pipes[1], &byte, 1) == 1)
      munmap(start, PAGE);
    _exit(1);
  }
  expect(read(pipes[0], &byte, 1) == 1, "the child");
  usleep(50000);
  double before = seconds();
  kill(child, SIGKILL);
  int status;
  expect(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "it ended by itself: %#x",
         status);
  expect(seconds() - before < LONG_WAIT / 2e3, "it took %.1f s to die", seconds() - before);
}

// Changes that are not read in time become one, and none is lost.
static void many_changes(void) {
  const size_t pages = 2000;
  begin(0);
  start = memory(pages * PAGE);
  madvise(start, pages * PAGE, MADV_NOHUGEPAGE);
  fill(start, pages * PAGE, 1);
  for (size_t page = 0; page < pages; page += 2) // each a watch of its own
    watch(start + page * PAGE, 1);
  for (size_t page = 0; page < pages; page++)
    expect(madvise(start + page * PAGE, PAGE, MADV_DONTNEED) == 0, "DONTNEED");
  bool* seen = calloc(pages, sizeof *seen);
  struct adverb_change changes[100];
  uint64_t last = 0;
  ssize_t n;
  for (unsigned reads = 0; told(); reads++) {
    expect(reads < 1000, "there is no end to them");
    n = read(monitor, changes, sizeof changes);
    expect(n > 0 && n % (ssize_t)sizeof *changes == 0, "read: %zd", n);
    for (size_t i = 0; i < (size_t)n / sizeof *changes; i++) {
      expect(changes[i].number == last + 1, "%llu after %llu",
             (unsigned long long)changes[i].number, (unsigned long long)last);
      last = changes[i].number;
      for (uint64_t at = changes[i].start; at < changes[i].end; at += PAGE)
        if (at >= (uintptr_t)start && at < (uintptr_t)start + pages * PAGE)
          seen[(at - (uintptr_t)start) / PAGE] = true;
    }
  }
  for (size_t page = 0; page < pages; page += 2)
    expect(seen[page], "the change of page %zu was lost", page);
}

static void bad_arguments(void) {
  struct adverb_monitor_begin argument = {.wait_ms = ADVERB_MONITOR_WAIT_MAX + 1};
  struct adverb_watch w = {.start = 4096, .length = 4096};
  struct adverb_change change;
  int adverb = open_adverb();
  expect(ioctl(adverb, ADVERB_IOC_MONITOR, &argument) != 0 && errno == EINVAL, "too long");
  argument = (struct adverb_monitor_begin){.flags = 1};
  expect(ioctl(adverb, ADVERB_IOC_MONITOR, &argument) != 0 && errno == EINVAL, "flags");
  expect(ioctl(adverb, ADVERB_IOC_WATCH, &w) != 0 && errno == ENXIO, "watch before");
  expect(read(adverb, &change, sizeof change) < 0 && errno == ENXIO, "read before");
  begin(0);
  argument.flags = 0;
  // Each is asked about each change of the address space, by whoever makes it.
  int others[4], opened = 0;
  for (; opened < 4; opened++) {
    others[opened] = open_adverb();
    if (ioctl(others[opened], ADVERB_IOC_MONITOR, &argument) != 0)
      break;
  }
  expect(opened == 3 && errno == EDQUOT, "%d more", opened);
  for (int i = 0; i <= opened; i++)
    close(others[i]);
  int anew = open_adverb();
  expect(ioctl(anew, ADVERB_IOC_MONITOR, &argument) == 0, "when they are gone: %s",
         strerror(errno));
  close(anew);
  pid_t heir = fork();
  if (heir == 0)
    _exit(!(ioctl(adverb, ADVERB_IOC_MONITOR, &argument) != 0 && errno == EPERM));
  int taken;
  expect(waitpid(heir, &taken, 0) == heir && taken == 0, "a child can make it its own");
  expect(ioctl(monitor, ADVERB_IOC_MONITOR, &argument) != 0 && errno == EBUSY, "twice");
  const struct {
    uint64_t start, length;
  } bad[] = {{0, 0}, {4096, 0}, {UINT64_MAX, 1}, {4096, UINT64_MAX}, {1UL << 56, 4096}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    w = (struct adverb_watch){.start = bad[i].start, .length = bad[i].length};
    expect(ioctl(monitor, ADVERB_IOC_WATCH, &w) != 0 && errno == EINVAL, "range %zu", i);
  }
  expect(read(monitor, &change, sizeof change - 1) < 0 && errno == EINVAL, "no room");
  start = memory(PAGE);
  fill(start, PAGE, 1);
  watch(start, PAGE);
  munmap(start, PAGE);
  void* volatile nowhere = (void*)8;
  expect(read(monitor, nowhere, sizeof change) < 0 && errno == EFAULT, "no memory");
  change = next();
  expect(change.start == 0 && change.end > (uintptr_t)start, "what could not be told is lost");
  pid_t child = fork();
  if (child == 0) {
    w = (struct adverb_watch){.start = (uintptr_t)start, .length = PAGE};
    bool refused = ioctl(monitor, ADVERB_IOC_WATCH, &w) != 0 && errno == EPERM &&
                   heard_errno(1) == EPERM && unwatch_errno(1) == EPERM &&
                   read(monitor, &change, sizeof change) < 0 && errno == EPERM;
    _exit(!refused);
  }
  int status;
  expect(waitpid(child, &status, 0) == child && status == 0, "a child can use it");
}

int main(int count, char** words) {
  choose(count, words);
  run("every call that changes what is watched is told", calls_are_told);
  run("holes in files and cut files are told, whoever makes them", files_are_told);
  run("upkeep of the kernel's is not told as a change of mappings", upkeep_is_not_told);
  run("a worker of the kernel's that changes a file tells of it, and does not wait",
      kernels_workers_do_not_wait);
  run("who changes what is watched goes on when that has been heard of", caller_waits);
  run("waiting ends by time, by closing, and is not for the reader", waiting_ends);
  run("who waits can be killed", caller_is_killed);
  run("changes that are not read become one, and none is lost", many_changes);
  run("a monitor is its owner's, and takes good arguments only", bad_arguments);
  return verdict();
}
