// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Real memory pressure: regions larger than the memory there is, and files that must not lose what
// a device wrote.
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define SOFT "/dev/adverb_test_soft"

static struct image image;

// A cgroup of its own with that much memory; this process joins it by join().
static void make_group(const char* name, const char* memory_max) {
  char path[96];
  write_file("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
  snprintf(path, sizeof path, "/sys/fs/cgroup/%s", name);
  if (mkdir(path, 0755) != 0 && errno != EEXIST)
    skip("%s: %s", path, strerror(errno));
  snprintf(path, sizeof path, "/sys/fs/cgroup/%s/memory.max", name);
  write_file(path, memory_max);
}

static void join(const char* name) {
  char path[96];
  snprintf(path, sizeof path, "/sys/fs/cgroup/%s/cgroup.procs", name);
  write_file(path, "0");
}

static uint64_t mixed(uint64_t sum, uint64_t word) {
  return (sum ^ word) * 0x100000001b3;
}

// Fault-in of what may leave again at once.
static void bring_in(size_t at, size_t length, bool write) {
  int error = fault_in_errno(image.adverb, image.region, image.start + at, length, write, NULL);
  expect(error == 0 || error == EAGAIN, "fault-in of page %zu: %s", at / PAGE, strerror(error));
}

#define STEP (64 * PAGE)

// The device writes every page, as a validated write does: look, write, look again, redo if it may
// have left. Returns the checksum of what was written.
static uint64_t write_all(unsigned long* redone) {
  uint64_t sum = 0;
  for (size_t at = 0; at < image.length; at += PAGE) {
    if (at % STEP == 0)
      bring_in(at, STEP, true);
    for (;;) {
      uint64_t before = generation(&image, 1, at);
      bool in = resident(&image, 1, at);
      device_store(&image, at, at + 1);
      if (in && resident(&image, 1, at) && generation(&image, 1, at) == before)
        break;
      ++*redone;
      bring_in(at, PAGE, true);
    }
    sum = mixed(sum, at + 1);
  }
  return sum;
}

// The device reads every page, as an optimistic read does: the pattern asks for a redo.
static uint64_t read_all(void) {
  uint64_t sum = 0, word;
  for (size_t at = 0; at < image.length; at += PAGE) {
    if (at % STEP == 0)
      bring_in(at, STEP, false);
    while (reads_pattern(&image, at, &word))
      bring_in(at, PAGE, false);
    sum = mixed(sum, word);
  }
  return sum;
}

// A region of at most one extent, and memory for a third of it at most: all that the device wrote
// is there, for the device and for the program, and nothing was ever pinned.
static void survives_swap(size_t length, size_t there_is) {
  unsigned long redone = 0;
  uint64_t written, read, seen = 0;
  expect(length >= 3 * there_is, "there are %zu MiB of memory", there_is / MIB);
  char* start = mmap((void*)(1UL << 40), length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  expect(start != MAP_FAILED, "mmap: %s", strerror(errno));
  make_image(&image, SOFT, start, length);
  written = write_all(&redone);
  struct adverb_query now = query(image.adverb, image.region);
  expect(now.resident[1] * PAGE <= there_is, "%llu pages resident, of %zu MiB there are",
         (unsigned long long)now.resident[1], there_is / MIB);
  expect(now.leave > length / PAGE, "%llu pages left", (unsigned long long)now.leave);
  expect(status_kib("VmPin") == 0, "VmPin is %ld KiB", status_kib("VmPin"));
  expect((size_t)status_kib("VmSwap") * 1024 > length / 2, "VmSwap is %ld KiB",
         status_kib("VmSwap"));
  read = read_all();
  for (size_t at = 0; at < length; at += PAGE)
    seen = mixed(seen, *(uint64_t*)(start + at));
  expect(read == written && seen == written,
         "written %#llx, the device reads %#llx, the program %#llx", (unsigned long long)written,
         (unsigned long long)read, (unsigned long long)seen);
  expect(status_kib("VmPin") == 0, "VmPin is %ld KiB", status_kib("VmPin"));
  now = query(image.adverb, image.region);
  note("%zu MiB in %zu MiB: %llu pages left, %llu faults waited for swap, %lu writes redone, "
       "VmSwap %ld KiB",
       length / MIB, there_is / MIB, (unsigned long long)now.leave, (unsigned long long)now.major,
       redone, status_kib("VmSwap"));
}

static void larger_than_cgroup(void) {
  make_group("np_pressure", "33554432");
  join("np_pressure");
  survives_swap(128 * MIB, 32 * MIB);
}

static void larger_than_host(void) {
  patience(400);
  survives_swap(1UL << 30, (size_t)sysconf(_SC_PHYS_PAGES) * PAGE);
}

// What the device wrote to a shared mapping is in the file after fsync, also when the page was
// clean.
static void file_survives(const char* folder) {
  const size_t length = 64 * PAGE;
  char path[64];
  int status;
  snprintf(path, sizeof path, "%s/np.file", folder);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (fd < 0)
    skip("%s: %s", path, strerror(errno));
  expect(ftruncate(fd, (off_t)length) == 0, "ftruncate");
  char* start = mapped(length, MAP_SHARED, fd);
  expect(start != MAP_FAILED, "mmap");
  make_image(&image, SOFT, start, length);
  for (uint64_t round = 1; round <= 3; round++) {
    fault_in(image.adverb, image.region, start, length, true);
    for (size_t page = 0; page < length / PAGE; page++)
      device_store(&image, page * PAGE, round << 32 | page);
    expect(fsync(fd) == 0, "fsync");
    // Written back and cleaned: it had to leave the write view, or later writes would not be seen.
    for (size_t page = 0; page < length / PAGE; page++)
      expect(!resident(&image, 1, page * PAGE),
             "page %zu is clean and can still be written by the device", page);
  }
  drop_image(&image);
  munmap(start, length);
  close(fd);
  // Only what is on the disk counts.
  char command[256];
  snprintf(command, sizeof command,
           "d=$(findmnt -no SOURCE %s) t=$(findmnt -no FSTYPE %s); umount %s && mount -t $t $d %s",
           folder, folder, folder, folder);
  status = system(command);
  expect(status == 0, "remount: status %d", status);
  fd = open(path, O_RDONLY);
  for (size_t page = 0; page < length / PAGE; page++) {
    uint64_t word = 0;
    expect(pread(fd, &word, sizeof word, (off_t)(page * PAGE)) == sizeof word, "read");
    expect(word == (3UL << 32 | page), "page %zu holds %#llx", page, (unsigned long long)word);
  }
}

static void ext4(void) {
  file_survives("/run/np_ext4");
}
static void xfs(void) {
  file_survives("/run/np_xfs");
}

static volatile pid_t stuck;

// SIGKILL does not end this thread as long as the file system is frozen.
static void* write_frozen(void* argument) {
  stuck = (pid_t)syscall(SYS_gettid);
  if (write(*(int*)argument, "", 1) != 1)
    _exit(3);
  return NULL;
}

static char state_of(pid_t thread) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
  FILE* file = fopen(path, "r");
  expect(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1, "%s: %s", path, strerror(errno));
  fclose(file);
  return state;
}

#define VICTIM (24 * MIB) // several batches of Leave

// A resident region, a thread that cannot go, then more memory than the cgroup has.
static void be_killed(int device, int file, int end) {
  pthread_t thread;
  char go;
  join("np_oom");
  make_image(&image, SOFT, memory(VICTIM), VICTIM);
  fill(image.start, VICTIM, 1);
  fault_in(image.adverb, image.region, image.start, VICTIM, true);
  struct adverb_test_import import = {.slot = 0, .fd = image.view[0].fd};
  expect(ioctl(device, ADVERB_TEST_IMPORT, &import) == 0, "import: %s", strerror(errno));
  expect(write(end, image.pattern, 8) == 8 && read(end, &go, 1) == 1, "go");
  pthread_create(&thread, NULL, write_frozen, &file);
  // Not before it is stuck: SIGKILL would still end it.
  while (stuck == 0 || state_of(stuck) != 'D')
    usleep(1000);
  fill(memory(128 * MIB), 128 * MIB, 1);
}

static bool logged(const char* what, pid_t of) {
  char command[128];
  snprintf(command, sizeof command, "dmesg | grep -q 'oom_reaper: %s%d '", what, (int)of);
  return system(command) == 0;
}

// Whether the reaper had this process, by what the kernel's log says within half a minute.
static bool reaped(pid_t child) {
  for (int i = 0; i < 300 && !logged("unable to reap pid:", child); i++) {
    if (logged("reaped process ", child))
      return true;
    usleep(100000);
  }
  return false;
}

static size_t pages_still_read(const struct image* other) {
  size_t pages = 0;
  uint64_t word;
  for (size_t at = 0; at < VICTIM; at += PAGE)
    pages += device_read_errno(other, at, &word, 8) != 0 || memcmp(&word, other->pattern, 8) != 0;
  return pages;
}

// A victim that cannot end loses its memory to the OOM reaper, whose invalidations must not block:
// a module that refused these would keep the memory, and one that waited would stop the reaper.
static void oom(void) {
  int device = open(SOFT, O_RDWR), ends[2], file, status;
  struct image other = {.device = device};
  make_group("np_oom", "50331648");
  write_file("/sys/fs/cgroup/np_oom/memory.swap.max", "0");
  file = open("/run/np_ext4/np.frozen", O_WRONLY | O_CREAT, 0600);
  if (file < 0)
    skip("/run/np_ext4: %s", strerror(errno));
  expect(device >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "%s", strerror(errno));
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    be_killed(device, file, ends[1]);
    _exit(4);
  }
  close(ends[1]);
  expect(read(ends[0], other.pattern, 8) == 8, "the victim died early");
  expect(device_word(&other, VICTIM - PAGE) == VICTIM / PAGE, "resident at first");
  expect(ioctl(file, FIFREEZE, 0) == 0, "freeze: %s", strerror(errno));
  // Nothing may end the test before it has thawed again.
  bool sent = write(ends[0], "g", 1) == 1, seen = sent && reaped(child);
  size_t still = pages_still_read(&other);
  bool lives = waitpid(child, &status, WNOHANG) == 0;
  ioctl(file, FITHAW, 0);
  expect(seen, "the reaper did not get it; the device reads %zu pages", still);
  expect(lives, "it ended by itself, with status %#x", status);
  expect(still == 0, "the device still reads %zu pages of what was reaped", still);
  waitpid(child, &status, 0);
  expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %#x", status);
}

int main(int count, char** words) {
  choose(count, words);
  run("a region several times the host's memory keeps every byte a device wrote", larger_than_host);
  run("a region four times its cgroup's memory keeps every byte a device wrote",
      larger_than_cgroup);
  run("ext4 on virtio-blk: what a device wrote survives fsync and remount", ext4);
  run("xfs on virtio-blk: what a device wrote survives fsync and remount", xfs);
  run("the OOM reaper takes a region without blocking", oom);
  return verdict();
}
