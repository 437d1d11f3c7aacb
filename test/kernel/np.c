// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "np.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;
static const char* only = "";
static int report = -1;

static void say(char kind, const char* format, va_list arguments) {
  char line[512] = {kind};
  vsnprintf(line + 1, sizeof line - 1, format, arguments);
  if (write(report, line, strlen(line)) < 0)
    perror("report");
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say('F', format, arguments);
  _exit(1);
}

void fail_at(const char* condition, const char* format, ...) {
  char whole[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(whole, sizeof whole, format, arguments);
  fail("%s: %s", condition, whole);
}

void skip(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say('S', format, arguments);
  _exit(77);
}

void choose(int count, char** words) {
  if (count > 1)
    only = words[1];
}

void note(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say('N', format, arguments);
}

void patience(unsigned seconds) {
  const char* slowness = getenv("ADVERB_SLOWNESS");
  alarm(seconds * (slowness ? (unsigned)atoi(slowness) : 1));
}

bool in_gate(void) {
  return getenv("ADVERB_GATE") != NULL;
}

void run_timed(const char* name, void (*test)(void)) {
  if (!in_gate())
    run(name, test);
}

void run(const char* name, void (*test)(void)) {
  if (!strstr(name, only))
    return;
  int ends[2], status;
  char why[513] = "";
  if (pipe(ends) != 0)
    abort();
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    report = ends[1];
    fcntl(report, F_SETFD, FD_CLOEXEC);
    patience(600);
    test();
    exit(0); // with what a preloaded library does at the end
  }
  close(ends[1]);
  waitpid(child, &status, 0);
  // Its own children may still hold the pipe: what is in it now is all there is to say.
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ssize_t n = read(ends[0], why, sizeof why - 1);
  close(ends[0]);
  why[n > 0 ? n : 0] = 0;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    printf("ok - %s\n", name);
    if (why[0])
      printf("# %s\n", why + 1);
  } else if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    printf("ok - %s # SKIP %s\n", name, why + 1);
  } else {
    failures++;
    if (why[0])
      printf("not ok - %s: %s\n", name, why + 1);
    else
      printf("not ok - %s: ended with wait status %#x\n", name, status);
  }
  fflush(stdout);
}

int verdict(void) {
  return failures != 0;
}

int open_adverb(void) {
  int fd = open("/dev/adverb", O_RDWR | O_CLOEXEC);
  if (fd < 0)
    fail("/dev/adverb: %s", strerror(errno));
  return fd;
}

int create_errno(int adverb, const void* start, size_t length, uint32_t* region) {
  struct adverb_region_create argument = {.start = (uintptr_t)start, .length = length};
  if (ioctl(adverb, ADVERB_IOC_REGION_CREATE, &argument) != 0)
    return errno;
  *region = argument.region;
  return 0;
}

uint32_t create(int adverb, const void* start, size_t length) {
  uint32_t region = 0;
  int error = create_errno(adverb, start, length, &region);
  if (error != 0)
    fail("region of %zu bytes: %s", length, strerror(error));
  return region;
}

int destroy_errno(int adverb, uint32_t region) {
  struct adverb_region_destroy argument = {.region = region};
  return ioctl(adverb, ADVERB_IOC_REGION_DESTROY, &argument) == 0 ? 0 : errno;
}

int build_errno(int adverb, uint32_t region, const void* address, int view,
                struct adverb_build* build) {
  *build = (struct adverb_build){
      .region = region, .view = (unsigned)view, .address = (uintptr_t)address};
  return ioctl(adverb, ADVERB_IOC_BUILD, build) == 0 ? 0 : errno;
}

int give_back_errno(int adverb, uint32_t region, const void* address, int view) {
  struct adverb_give_back argument = {
      .region = region, .view = (unsigned)view, .address = (uintptr_t)address};
  return ioctl(adverb, ADVERB_IOC_GIVE_BACK, &argument) == 0 ? 0 : errno;
}

int bring_errno(int adverb, uint32_t region, const void* start, size_t length, unsigned flags,
                size_t* done) {
  struct adverb_range range = {.start = (uintptr_t)start, .length = length};
  struct adverb_fault_in argument = {
      .ranges = (uintptr_t)&range, .count = 1, .region = region, .flags = flags};
  int error = ioctl(adverb, ADVERB_IOC_FAULT_IN, &argument) == 0 ? 0 : errno;
  if (argument.tried == 1 && -range.error != error)
    fail("fault-in fails with %s, and its range with %d", strerror(error), range.error);
  if (done)
    *done = range.done;
  return error;
}

int fault_in_errno(int adverb, uint32_t region, const void* start, size_t length, bool write,
                   size_t* done) {
  return bring_errno(adverb, region, start, length, write ? ADVERB_FAULT_WRITE : 0, done);
}

void fault_in(int adverb, uint32_t region, const void* start, size_t length, bool write) {
  size_t done = 0;
  int error = fault_in_errno(adverb, region, start, length, write, &done);
  if (error != 0)
    fail("fault-in after %zu of %zu bytes: %s", done, length, strerror(error));
  if (done != length)
    fail("fault-in says %zu of %zu bytes are in", done, length);
}

int query_errno(int adverb, uint32_t region) {
  struct adverb_query argument = {.region = region};
  return ioctl(adverb, ADVERB_IOC_QUERY, &argument) == 0 ? 0 : errno;
}

struct adverb_query query(int adverb, uint32_t region) {
  struct adverb_query argument = {.region = region};
  if (ioctl(adverb, ADVERB_IOC_QUERY, &argument) != 0)
    fail("query: %s", strerror(errno));
  return argument;
}

int query_extent_errno(int adverb, uint32_t region, const void* address,
                       struct adverb_query_extent* query) {
  *query = (struct adverb_query_extent){.region = region, .address = (uintptr_t)address};
  return ioctl(adverb, ADVERB_IOC_QUERY_EXTENT, query) == 0 ? 0 : errno;
}

int device_check_errno(int adverb, uint32_t region, const void* address, int view,
                       const char* device, char* reason) {
  struct adverb_device_check argument = {
      .region = region, .view = (unsigned)view, .address = (uintptr_t)address};
  snprintf(argument.device, sizeof argument.device, "%s", device);
  int error = ioctl(adverb, ADVERB_IOC_DEVICE_CHECK, &argument) == 0 ? 0 : errno;
  memcpy(reason, argument.reason, ADVERB_REASON_SIZE);
  return error;
}

static void import(struct image* image, int view) {
  struct adverb_test_import argument = {.slot = (unsigned)view, .fd = image->view[view].fd};
  if (ioctl(image->device, ADVERB_TEST_IMPORT, &argument) != 0)
    fail("import of view %d: %s", view, strerror(errno));
  image->address[view] = argument.address;
}

void make_views(struct image* image, void* start, size_t length) {
  memset(image, 0, sizeof *image);
  image->adverb = open_adverb();
  image->start = start;
  image->length = length;
  image->region = create(image->adverb, start, length);
  image->device = -1;
  for (int view = 0; view < 2; view++) {
    struct adverb_build* build = &image->view[view];
    int error = build_errno(image->adverb, image->region, start, view, build);
    if (error != 0)
      fail("building view %d: %s", view, strerror(error));
    expect(build->length == length, "the extent has %llu bytes", (unsigned long long)build->length);
    image->words[view] = mmap(NULL, build->table_length, PROT_READ, MAP_SHARED, image->adverb,
                              (off_t)build->table_offset);
    if (image->words[view] == MAP_FAILED)
      fail("mapping the table: %s", strerror(errno));
  }
  struct adverb_query argument = {.region = image->region, .pattern = (uintptr_t)image->pattern};
  if (ioctl(image->adverb, ADVERB_IOC_QUERY, &argument) != 0)
    fail("pattern: %s", strerror(errno));
}

void make_image(struct image* image, const char* device, void* start, size_t length) {
  make_views(image, start, length);
  image->device = open(device, O_RDWR | O_CLOEXEC);
  if (image->device < 0)
    fail("%s: %s", device, strerror(errno));
  for (int view = 0; view < 2; view++)
    import(image, view);
}

void drop_image(struct image* image) {
  close(image->device);
  for (int view = 0; view < 2; view++) {
    close(image->view[view].fd);
    munmap((void*)image->words[view], image->view[view].table_length);
  }
  close(image->adverb);
}

static int move(const struct image* image, bool write, size_t offset, void* data, size_t length) {
  struct adverb_test_move argument = {.slot = write ? ADVERB_VIEW_WRITE : ADVERB_VIEW_READ,
                                      .write = write,
                                      .offset = offset,
                                      .length = length,
                                      .data = (uintptr_t)data};
  return ioctl(image->device, ADVERB_TEST_MOVE, &argument) == 0 ? 0 : errno;
}

int device_read_errno(const struct image* image, size_t offset, void* data, size_t length) {
  return move(image, false, offset, data, length);
}

int device_write_errno(const struct image* image, size_t offset, const void* data, size_t length) {
  return move(image, true, offset, (void*)data, length);
}

uint64_t device_word(const struct image* image, size_t offset) {
  uint64_t word = 0;
  int error = device_read_errno(image, offset, &word, sizeof word);
  if (error != 0)
    fail("device read at %#zx: %s", offset, strerror(error));
  return word;
}

void device_store(const struct image* image, size_t offset, uint64_t word) {
  int error = device_write_errno(image, offset, &word, sizeof word);
  if (error != 0)
    fail("device write at %#zx: %s", offset, strerror(error));
}

bool reads_pattern(const struct image* image, size_t offset, uint64_t* word) {
  *word = device_word(image, offset);
  return memcmp(word, image->pattern + offset % PAGE, sizeof *word) == 0;
}

static size_t granule(const struct image* image, size_t offset) {
  uintptr_t size = ADVERB_GRANULE_PAGES * PAGE;
  return ((uintptr_t)image->start + offset) / size - (uintptr_t)image->start / size;
}

uint64_t state_word(const struct image* image, int view, size_t offset) {
  return image->words[view][granule(image, offset)];
}

bool resident(const struct image* image, int view, size_t offset) {
  uint64_t word = state_word(image, view, offset);
  return word_says_resident(image, word, offset);
}

bool word_says_resident(const struct image* image, uint64_t word, size_t offset) {
  return word >> (((uintptr_t)image->start + offset) / PAGE % ADVERB_GRANULE_PAGES) & 1;
}

uint64_t generation(const struct image* image, int view, size_t offset) {
  return ADVERB_WORD_GENERATION(state_word(image, view, offset));
}

char* mapped(size_t length, int flags, int fd) {
  const uintptr_t gib = 1UL << 30;
  for (;;) {
    char* start = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);
    // In one extent, where it fits into one; what lies across a border keeps the next from it.
    if (start == MAP_FAILED || length > gib / 2 ||
        (uintptr_t)start / gib == ((uintptr_t)start + length - 1) / gib)
      return start;
    if (mmap(start, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
      fail("keeping %zu bytes across a border: %s", length, strerror(errno));
  }
}

char* memory(size_t length) {
  char* start = mapped(length, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (start == MAP_FAILED)
    fail("mmap of %zu: %s", length, strerror(errno));
  return start;
}

void fill(char* start, size_t length, uint64_t seed) {
  for (size_t offset = 0; offset < length; offset += PAGE)
    *(uint64_t*)(start + offset) = seed + offset / PAGE;
}

long status_kib(const char* field) {
  char line[256];
  long value = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
      value = atol(line + strlen(field) + 1);
  if (file)
    fclose(file);
  return value;
}

void write_file(const char* path, const char* text) {
  int fd = open(path, O_WRONLY);
  if (fd < 0 || write(fd, text, strlen(text)) < 0)
    skip("%s: %s", path, strerror(errno));
  close(fd);
}

void drain_lists(void) {
  char* other = memory(4 * MIB);
  fill(other, 4 * MIB, 1);
  // All lists are drained before its first page is looked at.
  expect(madvise(other, 4 * MIB, MADV_COLLAPSE) == 0, "MADV_COLLAPSE: %s", strerror(errno));
  munmap(other, 4 * MIB);
}

const char* pci_device(const char* driver, const char* bus) {
  static char name[ADVERB_DEVICE_SIZE];
  char pattern[256];
  glob_t found;
  snprintf(pattern, sizeof pattern, "/sys/bus/pci/drivers/%s/%s:*", driver, bus);
  if (glob(pattern, 0, NULL, &found) != 0)
    fail("%s has no device on bus %s", driver, bus);
  snprintf(name, sizeof name, "%s", strrchr(found.gl_pathv[0], '/') + 1);
  globfree(&found);
  return name;
}

int userfaults(uint64_t features) {
  int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {.api = UFFD_API, .features = features};
  if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0)
    skip("userfaultfd: %s", strerror(errno));
  return fd;
}
