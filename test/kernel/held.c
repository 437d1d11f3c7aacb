// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// An owner who keeps its mmap_lock for as long as it likes, by a page of a file system of its own
// that does not come, delays nobody else: not who lets go of a dma-buf it was given, nor devices
// that attach and detach, nor the freeing of other users' regions.
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "np.h"

#define EDU "/dev/adverb_test_edu"
#define FOLDER "/run/np_held"
#define OWNER 65534
#define OTHER 65533
#define TABLES 270  // more than the works a queue has going on at once
#define PATIENCE 20 // seconds for what takes milliseconds

// The file system: one file, "page", whose page is asked for and does not come.

static int asked[2]; // a byte for each time the page was asked for
static pid_t server;

static void answer(int fuse, uint64_t unique, int error, const void* data, size_t length) {
  struct {
    struct fuse_out_header header;
    char data[256];
  } out = {
      .header = {.len = (uint32_t)(sizeof out.header + length), .error = -error, .unique = unique}};
  if (length > 0)
    memcpy(out.data, data, length);
  if (write(fuse, &out, out.header.len) < 0)
    _exit(1);
}

static void answer_attributes(int fuse, const struct fuse_in_header* in, bool looked_up) {
  bool file = looked_up || in->nodeid != FUSE_ROOT_ID;
  struct fuse_attr attributes = {.ino = file ? 2 : FUSE_ROOT_ID,
                                 .size = file ? PAGE : 0,
                                 .mode = file ? S_IFREG | 0444 : S_IFDIR | 0755,
                                 .nlink = 1};
  struct fuse_entry_out entry = {
      .nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = attributes};
  struct fuse_attr_out plain = {.attr_valid = 3600, .attr = attributes};
  if (looked_up)
    answer(fuse, in->unique, 0, &entry, sizeof entry);
  else
    answer(fuse, in->unique, 0, &plain, sizeof plain);
}

static void serve_request(int fuse, const struct fuse_in_header* in) {
  struct fuse_init_out init = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = PAGE};
  struct fuse_open_out open = {0};
  switch (in->opcode) {
  case FUSE_INIT:
    answer(fuse, in->unique, 0, &init, sizeof init);
    break;
  case FUSE_LOOKUP:
    answer_attributes(fuse, in, true);
    break;
  case FUSE_GETATTR:
    answer_attributes(fuse, in, false);
    break;
  case FUSE_OPEN:
    answer(fuse, in->unique, 0, &open, sizeof open);
    break;
  case FUSE_READ:
    if (write(asked[1], "r", 1) != 1)
      _exit(1);
    break;
  case FUSE_FORGET:
  case FUSE_BATCH_FORGET:
  case FUSE_INTERRUPT:
    break;
  default:
    answer(fuse, in->unique, ENOSYS, NULL, 0);
  }
}

// Mounted until the test ends. The server ends with the test, too, and then all that waits for the
// page fails.
static void make_file_system(void) {
  char options[128];
  int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fuse < 0)
    skip("/dev/fuse: %s", strerror(errno));
  expect(mkdir(FOLDER, 0755) == 0 || errno == EEXIST, "mkdir: %s", strerror(errno));
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fuse);
  expect(mount("np", FOLDER, "fuse", MS_NOSUID | MS_NODEV, options) == 0, "mount: %s",
         strerror(errno));
  expect(pipe(asked) == 0, "pipe: %s", strerror(errno));
  server = fork();
  if (server == 0) {
    static _Alignas(8) char request[65536];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(fuse, request, sizeof request) > 0)
      serve_request(fuse, (struct fuse_in_header*)request);
    _exit(1);
  }
  close(fuse);
}

// All that waits for the page fails.
static void end_file_system(void) {
  kill(server, SIGKILL);
  waitpid(server, NULL, 0);
  umount2(FOLDER, MNT_DETACH);
}

// In the owner: keeps the mmap_lock of this address space from now on.

static char* page;
static int wanted[2];
static volatile pid_t waiter;

static void* ask_for_page(void* argument) {
  char byte;
  int memory = open("/proc/self/mem", O_RDONLY);
  // Ends when the file system does, with an error or not.
  return pread(memory, &byte, 1, (off_t)(uintptr_t)page) < 0 ? NULL : argument;
}

static void* want_lock(void* argument) {
  char byte;
  waiter = (pid_t)syscall(SYS_gettid);
  if (read(wanted[0], &byte, 1) == 1)
    mprotect(page, PAGE, PROT_NONE);
  return argument;
}

static char state_of(pid_t thread) {
  char path[64], line[512] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  int fd = open(path, O_RDONLY);
  ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
  close(fd);
  line[n > 0 ? n : 0] = 0;
  const char* after = strrchr(line, ')');
  return after ? after[2] : '?';
}

static void hold_mmap_lock(void) {
  pthread_t threads[2];
  char byte;
  int file = open(FOLDER "/page", O_RDONLY);
  expect(file >= 0, "the file: %s", strerror(errno));
  page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
  expect(page != MAP_FAILED && pipe(wanted) == 0, "mapping it: %s", strerror(errno));
  expect(pthread_create(&threads[0], NULL, want_lock, NULL) == 0, "a thread");
  expect(pthread_create(&threads[1], NULL, ask_for_page, NULL) == 0, "a thread");
  expect(read(asked[0], &byte, 1) == 1, "nobody asks for the page");
  // To see that it is held: one who wants it waits, without a signal being able to wake it.
  expect(write(wanted[1], "w", 1) == 1, "write");
  for (int tries = 0; tries < 2000 && (waiter == 0 || state_of(waiter) != 'D'); tries++)
    usleep(10000);
  expect(waiter != 0 && state_of(waiter) == 'D',
         "the lock is not held: who wants it is in state %c", state_of(waiter));
}

// The test, the owner, and who must not wait for it.

static int told[2], go[2]; // by the owner and its child to the test, by the test to them
static pid_t the_owner;
static int* dmabuf_of_owner; // the number of the descriptor there; in memory shared with it

static void say(int fd, const char* what) {
  expect(write(fd, what, 1) == 1, "%s", strerror(errno));
}

static void hear(int fd, char what) {
  char heard = 0;
  expect(read(fd, &heard, 1) == 1 && heard == what, "waiting for '%c', heard '%c'", what, heard);
}

static void begin(void) {
  umount2(FOLDER, MNT_DETACH); // what a test that failed has left
  make_file_system();
  dmabuf_of_owner = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  expect(dmabuf_of_owner != MAP_FAILED && pipe(told) == 0 && pipe(go) == 0, "%s", strerror(errno));
}

// An ordinary user, with what one may lock by default. Returns in the child.
static bool is_owner(void) {
  const struct rlimit limit = {8 * MIB, 8 * MIB};
  the_owner = fork();
  if (the_owner != 0) {
    close(told[1]);
    return false;
  }
  close(told[0]);
  close(go[1]);
  expect(setrlimit(RLIMIT_MEMLOCK, &limit) == 0, "setrlimit");
  return true;
}

static void become(uid_t user) {
  expect(setuid(user) == 0, "setuid: %s", strerror(errno));
  // Both are taken away by setuid().
  prctl(PR_SET_DUMPABLE, 1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

// Hears of the owner; if it ends instead, it has said why itself.
static void hear_of_owner(char what) {
  char heard;
  int status;
  if (read(told[0], &heard, 1) != 1) {
    waitpid(the_owner, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  expect(heard == what, "waiting for '%c', heard '%c'", what, heard);
}

static int seconds(void) {
  const char* slowness = getenv("ADVERB_SLOWNESS");
  return PATIENCE * (slowness ? atoi(slowness) : 1);
}

// Ends the test as failed if the process does not end well in time.
static void must_end(pid_t process, const char* what) {
  int status = 0, ended = 0;
  for (int tries = 0; tries < seconds() * 100 && ended == 0; tries++) {
    ended = waitpid(process, &status, WNOHANG);
    usleep(10000);
  }
  end_file_system();
  kill(the_owner, SIGKILL);
  expect(ended == process, "%s takes more than %d s", what, seconds());
  if (status != 0)
    _exit(1); // it has said why itself
  waitpid(the_owner, NULL, 0);
}

// Makes a region, lets the visitor have its dma-buf, and then holds.
static void own(bool destroys) {
  int adverb = open_adverb();
  become(OWNER);
  char* start = memory(16 * PAGE);
  uint32_t region = create(adverb, start, 16 * PAGE);
  struct adverb_build build;
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  *dmabuf_of_owner = build.fd;
  say(told[1], "b");
  hear(go[0], 'h');
  if (destroys) {
    expect(destroy_errno(adverb, region) == 0, "destroy");
    close(adverb);
  }
  close(build.fd);
  hold_mmap_lock();
  say(told[1], "h");
  pause();
}

static int visitor_dmabuf(void) {
  int process = (int)syscall(SYS_pidfd_open, the_owner, 0);
  int fd = (int)syscall(SYS_pidfd_getfd, process, *dmabuf_of_owner, 0);
  expect(fd >= 0, "pidfd_getfd: %s", strerror(errno));
  close(process);
  return fd;
}

// What a visitor does before the owner holds its lock, and after.
struct visitor {
  void (*before)(int device, int fd);
  void (*after)(int device, int fd);
};

static void nothing(int device, int fd) {
  (void)device, (void)fd;
}
static void let_go(int device, int fd) {
  (void)device;
  close(fd);
}
static void attach(int device, int fd) {
  struct adverb_test_import argument = {.slot = 0, .fd = fd};
  expect(ioctl(device, ADVERB_TEST_IMPORT, &argument) == 0, "import: %s", strerror(errno));
}
static void detach(int device, int fd) {
  struct adverb_test_import argument = {.slot = 0, .fd = -1};
  (void)fd;
  expect(ioctl(device, ADVERB_TEST_IMPORT, &argument) == 0, "letting go: %s", strerror(errno));
}

// Root does it with what it was given by the owner, while the owner holds its lock.
static void visit(struct visitor visitor, bool owner_destroys, const char* what) {
  int ready[2], start[2];
  begin();
  if (is_owner())
    own(owner_destroys);
  hear_of_owner('b');
  expect(pipe(ready) == 0 && pipe(start) == 0, "pipe");
  pid_t child = fork();
  if (child == 0) {
    int fd = visitor_dmabuf(), device = open(EDU, O_RDWR | O_CLOEXEC);
    visitor.before(device, fd);
    say(ready[1], "p");
    hear(start[0], 'v');
    visitor.after(device, fd);
    _exit(0);
  }
  close(ready[1]);
  hear(ready[0], 'p');
  say(go[1], "h");
  hear_of_owner('h');
  say(start[1], "v");
  must_end(child, what);
}

static void closes(void) {
  visit((struct visitor){nothing, let_go}, true, "closing a dma-buf");
}
static void attaches(void) {
  visit((struct visitor){nothing, attach}, false, "attaching a device");
}
static void detaches(void) {
  visit((struct visitor){attach, detach}, false, "detaching a device");
}

// Regions that are destroyed, and stay for as long as the child has their tables mapped.
static void own_many(void) {
  int adverb = open_adverb(), tables[TABLES];
  become(OWNER);
  char* start = memory(PAGE);
  char* place = mmap(NULL, TABLES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < TABLES; i++) {
    struct adverb_build build;
    tables[i] = (int)create(adverb, start, PAGE);
    expect(build_errno(adverb, (uint32_t)tables[i], start, 0, &build) == 0, "build");
    close(build.fd);
    expect(mmap(place + i * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, adverb,
                (off_t)build.table_offset) != MAP_FAILED,
           "mmap: %s", strerror(errno));
  }
  if (madvise(place, TABLES * PAGE, MADV_DOFORK) != 0)
    skip("this kernel keeps tables to one address space");
  pid_t child = fork();
  if (child == 0) {
    hear(go[0], 'u');
    munmap(place, TABLES * PAGE);
    say(told[1], "u");
    _exit(0);
  }
  for (int i = 0; i < TABLES; i++)
    expect(destroy_errno(adverb, (uint32_t)tables[i]) == 0, "destroy");
  munmap(place, TABLES * PAGE);
  hold_mmap_lock();
  say(told[1], "h");
  pause();
}

static bool can_pay(int adverb, char* start, uint32_t* region, struct adverb_build* build) {
  if (create_errno(adverb, start, PAGE, region) != 0)
    return false;
  if (build_errno(adverb, *region, start, 0, build) == 0)
    return true;
  destroy_errno(adverb, *region);
  return false;
}

// Can pay for one region at a time, and must be given that back when the last mapping of its table
// goes.
static void pay_again(void) {
  int adverb = open_adverb();
  char* start = memory(PAGE);
  struct adverb_build build;
  uint32_t region, other;
  expect(can_pay(adverb, start, &region, &build), "root cannot pay");
  rlim_t charged = query(adverb, region).charged_pages * PAGE;
  close(build.fd);
  destroy_errno(adverb, region);
  expect(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){charged, charged}) == 0, "setrlimit");
  become(OTHER);
  expect(can_pay(adverb, start, &region, &build), "the first region");
  void* table = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, adverb, (off_t)build.table_offset);
  expect(table != MAP_FAILED, "mmap: %s", strerror(errno));
  destroy_errno(adverb, region);
  close(build.fd);
  expect(!can_pay(adverb, start, &other, &build), "what is mapped is not paid for");
  munmap(table, PAGE);
  while (!can_pay(adverb, start, &other, &build))
    usleep(10000);
}

static void frees_for_others(void) {
  begin();
  if (is_owner())
    own_many();
  hear_of_owner('h');
  say(go[1], "u");
  hear_of_owner('u');
  pid_t child = fork();
  if (child == 0) {
    pay_again();
    _exit(0);
  }
  must_end(child, "being given back the charge of a region");
}

int main(int count, char** words) {
  choose(count, words);
  run("an owner who holds its mmap_lock delays nobody who closes its dma-buf", closes);
  run("an owner who holds its mmap_lock delays no device that attaches", attaches);
  run("an owner who holds its mmap_lock delays no device that detaches", detaches);
  run("an owner who holds up many regions of its own holds up nobody else's", frees_for_others);
  return verdict();
}
