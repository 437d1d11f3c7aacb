// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Bad ioctls and bad netlink messages earn errors, the right ones where it matters, and nothing
// else.
#include <errno.h>
#include <fcntl.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "np.h"

#define SECONDS 6
#define GATE_CALLS 5000 // in the gate, which is as long on any machine

static void flags_must_be_known(void) {
  int adverb = open_adverb();
  char* start = memory(PAGE);
  uint32_t region = create(adverb, start, PAGE);
  struct adverb_region_create c = {.start = (uintptr_t)start, .length = PAGE, .flags = 2};
  struct adverb_region_destroy d = {.region = region, .flags = 1};
  struct adverb_build b = {.region = region, .address = (uintptr_t)start, .flags = 1};
  struct adverb_range range = {.start = (uintptr_t)start, .length = 1};
  struct adverb_fault_in f = {
      .ranges = (uintptr_t)&range, .count = 1, .region = region, .flags = 16};
  struct adverb_query q = {.region = region, .flags = 1};
  expect(ioctl(adverb, ADVERB_IOC_REGION_CREATE, &c) != 0 && errno == EINVAL, "create");
  expect(ioctl(adverb, ADVERB_IOC_REGION_DESTROY, &d) != 0 && errno == EINVAL, "destroy");
  expect(ioctl(adverb, ADVERB_IOC_BUILD, &b) != 0 && errno == EINVAL, "build");
  expect(ioctl(adverb, ADVERB_IOC_FAULT_IN, &f) != 0 && errno == EINVAL, "fault-in");
  f.flags = ADVERB_FAULT_NOWAIT | ADVERB_FAULT_MARK;
  expect(ioctl(adverb, ADVERB_IOC_FAULT_IN, &f) != 0 && errno == EINVAL, "two ways at once");
  f.flags = 0;
  f.count = 0;
  expect(ioctl(adverb, ADVERB_IOC_FAULT_IN, &f) != 0 && errno == EINVAL, "no range");
  f.count = ADVERB_MAX_RANGES + 1;
  expect(ioctl(adverb, ADVERB_IOC_FAULT_IN, &f) != 0 && errno == EINVAL, "too many ranges");
  f.count = 1;
  f.ranges = 8;
  expect(ioctl(adverb, ADVERB_IOC_FAULT_IN, &f) != 0 && errno == EFAULT && f.tried == 0,
         "ranges where no memory is");
  struct adverb_query_extent e = {.region = region, .flags = 1};
  expect(ioctl(adverb, ADVERB_IOC_QUERY_EXTENT, &e) != 0 && errno == EINVAL, "query of an extent");
  struct adverb_device_check k = {.region = region, .address = (uintptr_t)start, .flags = 1};
  expect(ioctl(adverb, ADVERB_IOC_DEVICE_CHECK, &k) != 0 && errno == EINVAL, "device check");
  expect(ioctl(adverb, ADVERB_IOC_QUERY, &q) != 0 && errno == EINVAL, "query");
  struct adverb_give_back g = {.region = region, .address = (uintptr_t)start, .flags = 1};
  expect(ioctl(adverb, ADVERB_IOC_GIVE_BACK, &g) != 0 && errno == EINVAL, "give back");
  b.flags = 0;
  b.view = 2;
  expect(ioctl(adverb, ADVERB_IOC_BUILD, &b) != 0 && errno == EINVAL, "a third view");
  expect(ioctl(adverb, _IO('A', 0x90)) != 0 && errno == ENOTTY, "no such ioctl");
  expect(ioctl(adverb, ADVERB_IOC_QUERY, (void*)8) != 0 && errno == EFAULT, "no memory");
}

static void ranges_are_checked(void) {
  int adverb = open_adverb();
  uint32_t region;
  const struct {
    uint64_t start, length;
  } bad[] = {{0, 0},
             {4096, 0},
             {UINT64_MAX, 1},
             {UINT64_MAX - 4095, 8192},
             {4096, UINT64_MAX},
             {1UL << 56, 4096},
             {(1UL << 56) - 4096, 8192},
             {0xffff800000000000, 4096},
             {0xffffffff81000000, 4096}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    expect(create_errno(adverb, (void*)bad[i].start, bad[i].length, &region) == EINVAL, "range %zu",
           i);
  char* start = memory(4 * PAGE);
  region = create(adverb, start, 4 * PAGE);
  struct adverb_build build;
  expect(build_errno(adverb, region, start + 4 * PAGE, 0, &build) == ERANGE, "behind the end");
  expect(build_errno(adverb, region, NULL, 0, &build) == ERANGE, "address 0");
  expect(build_errno(adverb, region + 1, start, 0, &build) == ENOENT, "no such region");
  expect(give_back_errno(adverb, region, start + 4 * PAGE, 0) == ERANGE,
         "giving back what is behind");
  expect(give_back_errno(adverb, region, start, 0) == ENXIO, "giving back what is not built");
  expect(give_back_errno(adverb, region, start, 2) == EINVAL, "giving back a third view");
  expect(fault_in_errno(adverb, region, start, UINT64_MAX, false, NULL) == EINVAL, "wrapping");
  expect(fault_in_errno(adverb, region, start, 5 * PAGE, false, NULL) == ERANGE, "too long");
  expect(fault_in_errno(adverb, region, start, 0, false, NULL) == EINVAL, "empty");
  // Only memory of programs is ever shown, whatever lies at the addresses.
  region = create(adverb, (void*)PAGE, PAGE);
  expect(build_errno(adverb, region, (void*)PAGE, 1, &build) == 0, "build");
  expect(fault_in_errno(adverb, region, (void*)PAGE, PAGE, true, NULL) == EFAULT,
         "nothing is mapped");
}

static void other_files_are_refused(void) {
  int adverb = open_adverb(), other = open_adverb();
  char* start = memory(PAGE);
  uint32_t region = create(adverb, start, PAGE);
  struct adverb_build build;
  expect(query_errno(other, region) == ENOENT, "another file's region");
  int pipes[2];
  expect(pipe(pipes) == 0 && build_errno(pipes[0], region, start, 0, &build) == ENOTTY, "a pipe");
  int soft = open("/dev/adverb_test_soft", O_RDWR);
  struct adverb_test_import import = {.fd = adverb};
  expect(ioctl(soft, ADVERB_TEST_IMPORT, &import) != 0 && errno == EINVAL,
         "/dev/adverb is no dma-buf");
}

static uint64_t interesting(unsigned* seed, const char* memory) {
  static const uint64_t values[] = {0,          1,         2,         3,         4095,      4096,
                                    UINT64_MAX, 1UL << 47, 1UL << 30, 1UL << 63, 0xffffffff};
  switch (rand_r(seed) % 4) {
  case 0:
    return values[(size_t)rand_r(seed) % (sizeof values / sizeof *values)];
  case 1:
    return (uint64_t)rand_r(seed) << 32 | (uint64_t)rand_r(seed);
  case 2:
    return (uint64_t)(rand_r(seed) % 8);
  default:
    return (uintptr_t)memory + (uint64_t)(rand_r(seed) % (1 << 21));
  }
}

static unsigned new_seed(void) {
  unsigned seed = in_gate() ? 1 : (unsigned)time(NULL);
  // At once: a kernel that dies of it lets nothing be said afterwards.
  fprintf(stderr, "seed %u\n", seed);
  return seed;
}

// Any fields, any command but creation if `create` is not set. Returns how many calls succeeded but
// those that ask for the version.
static unsigned long any_calls(int adverb, char* start, bool create, unsigned seed,
                               unsigned long* calls) {
  static const unsigned long commands[] = {
      ADVERB_IOC_VERSION,      ADVERB_IOC_REGION_DESTROY, ADVERB_IOC_BUILD,
      ADVERB_IOC_FAULT_IN,     ADVERB_IOC_QUERY,          ADVERB_IOC_GIVE_BACK,
      ADVERB_IOC_QUERY_EXTENT, ADVERB_IOC_DEVICE_CHECK,   ADVERB_IOC_MONITOR,
      ADVERB_IOC_WATCH,        ADVERB_IOC_UNWATCH,        ADVERB_IOC_HEARD,
      ADVERB_IOC_REGION_CREATE};
  unsigned long good = 0;
  for (time_t end = time(NULL) + SECONDS; in_gate() ? *calls < GATE_CALLS : time(NULL) < end;
       ++*calls) {
    uint64_t fields[64] = {0}; // more than any structure has
    struct adverb_range ranges[8];
    for (int i = 0; i < 8; i++)
      if (rand_r(&seed) & 1)
        fields[i] = interesting(&seed, start);
    // Where a real region is asked for, half of the calls get further than the first check.
    unsigned long command = commands[rand_r(&seed) % (create ? 13 : 12)];
    if (command == ADVERB_IOC_REGION_CREATE && rand_r(&seed) % 2) {
      fields[0] = (uintptr_t)start + (uint64_t)rand_r(&seed) % MIB;
      fields[1] = (uint64_t)rand_r(&seed) % MIB;
      fields[2] = (uint64_t)(rand_r(&seed) % 2) | (uint64_t)(21 + rand_r(&seed) % 10) << 32;
      fields[3] = 0;
    }
    if (command == ADVERB_IOC_GIVE_BACK && rand_r(&seed) % 2) {
      fields[0] = (uint64_t)(rand_r(&seed) % 16) | (uint64_t)(rand_r(&seed) % 2) << 32;
      fields[2] = 0;
    }
    if (command == ADVERB_IOC_FAULT_IN) {
      for (int i = 0; i < 8; i++)
        ranges[i] =
            (struct adverb_range){interesting(&seed, start), interesting(&seed, start), .error = 1};
      // Or where results must not go.
      fields[0] = rand_r(&seed) % 8 ? (uintptr_t)ranges : 8;
      fields[1] = (uint64_t)(rand_r(&seed) % 9) | (uint64_t)(rand_r(&seed) % 16) << 32;
      fields[2] = (uint64_t)(rand_r(&seed) % 16);
    }
    if (command == ADVERB_IOC_DEVICE_CHECK && rand_r(&seed) % 2) {
      struct adverb_device_check check = {.address = fields[0],
                                          .region = (unsigned)rand_r(&seed) % 16,
                                          .view = (unsigned)rand_r(&seed) % 2};
      snprintf(check.device, sizeof check.device, "0000:00:%02x.0", (unsigned)rand_r(&seed) % 8);
      memcpy(fields, &check, sizeof check);
    }
    if (command == ADVERB_IOC_MONITOR) // nobody reads, so nobody is to be waited for for long
      fields[0] = (uint64_t)(rand_r(&seed) % 2) | (uint64_t)(rand_r(&seed) % 4) << 32;
    if (command == ADVERB_IOC_WATCH && rand_r(&seed) % 2)
      fields[2] = 0;
    // Results must not go where the test itself lives.
    if (command == ADVERB_IOC_QUERY)
      fields[3] = rand_r(&seed) % 2 ? (uintptr_t)start : 8;
    if (ioctl(adverb, command, fields) == 0 && command != ADVERB_IOC_VERSION) {
      good++;
      if (command == ADVERB_IOC_BUILD) {
        struct adverb_build build;
        memcpy(&build, fields, sizeof build);
        close(build.fd);
      }
    }
    if (*calls % 64 == 32 && fcntl(adverb, F_SETFL, O_NONBLOCK) == 0 &&
        read(adverb, start, interesting(&seed, start) % 4096) > 0)
      good++;
    if (*calls % 64 == 0 &&
        mmap(NULL, interesting(&seed, start) % (8 * MIB), rand_r(&seed) % 8, 1 << rand_r(&seed) % 2,
             adverb, (off_t)(interesting(&seed, start) << 12)) != MAP_FAILED)
      good++;
  }
  return good;
}

// Forks one who has the owner's descriptor and memory's image, but not the address space; perhaps
// not even the user. Exits with 0 if no call succeeded.
static pid_t outsider(int adverb, char* start, uid_t user, unsigned seed) {
  pid_t child = fork();
  if (child == 0) {
    unsigned long calls = 0, good;
    if (setuid(user) != 0)
      _exit(200);
    good = any_calls(adverb, start, false, seed, &calls);
    _exit(calls < 1000 ? 100 : good != 0);
  }
  return child;
}

// Overlapping regions over the same memory, made and used by their owner, while others with the
// descriptor try the same calls. What all this makes it must also clean up (the script unloads the
// module).
static void any_fields(void) {
  unsigned seed = new_seed();
  int adverb = open_adverb(), heir_status, stranger_status;
  char* start = memory(2 * MIB);
  unsigned long calls = 0;
  pid_t heir = outsider(adverb, start, 0, seed + 1);
  pid_t stranger = outsider(adverb, start, 65534, seed + 2);
  unsigned long good = any_calls(adverb, start, true, seed, &calls);
  waitpid(heir, &heir_status, 0);
  waitpid(stranger, &stranger_status, 0);
  expect(good > 0, "none of %lu calls did anything, seed %u", calls, seed);
  expect(heir_status == 0, "a child may use its parent's regions: %#x, seed %u", heir_status, seed);
  expect(stranger_status == 0, "another user may use them: %#x, seed %u", stranger_status, seed);
  note("%lu calls of the owner, %lu of them good; seed %u", calls, good, seed);
}

// Generic netlink, by hand.
struct message {
  struct nlmsghdr header;
  struct genlmsghdr generic;
  char attributes[2048];
};

static int netlink(void) {
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_GENERIC);
  struct timeval patience = {.tv_sec = 5};
  if (fd < 0)
    fail("netlink: %s", strerror(errno));
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return fd;
}

static void add(struct message* message, int type, const void* data, size_t length) {
  struct nlattr* attribute =
      (struct nlattr*)((char*)message + NLMSG_ALIGN(message->header.nlmsg_len));
  attribute->nla_type = (uint16_t)type;
  attribute->nla_len = (uint16_t)(NLA_HDRLEN + length);
  memcpy((char*)attribute + NLA_HDRLEN, data, length);
  message->header.nlmsg_len =
      NLMSG_ALIGN(message->header.nlmsg_len) + NLMSG_ALIGN(attribute->nla_len);
}

static struct message request(int family, int command, int flags) {
  struct message message = {.header = {.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN),
                                       .nlmsg_type = (uint16_t)family,
                                       .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags)},
                            .generic = {.cmd = (uint8_t)command, .version = 1}};
  return message;
}

// The value of an attribute in the first message of an answer, or NULL; *error is what netlink
// said.
static const void* ask(int fd, struct message* message, int attribute, int* error, int* messages) {
  static char answer[65536];
  *messages = 0;
  *error = 0;
  if (send(fd, message, message->header.nlmsg_len, 0) < 0)
    fail("send: %s", strerror(errno));
  const void* found = NULL;
  for (;;) {
    ssize_t n = recv(fd, answer, sizeof answer, 0);
    if (n < 0)
      fail("no answer: %s", strerror(errno));
    int left = (int)n;
    for (struct nlmsghdr* h = (struct nlmsghdr*)answer; NLMSG_OK(h, (unsigned)left);
         h = NLMSG_NEXT(h, left)) {
      if (h->nlmsg_type == NLMSG_DONE)
        return found;
      if (h->nlmsg_type == NLMSG_ERROR) {
        *error = -((struct nlmsgerr*)NLMSG_DATA(h))->error;
        return found;
      }
      ++*messages;
      char* at = (char*)NLMSG_DATA(h) + GENL_HDRLEN;
      for (; at < (char*)h + h->nlmsg_len; at += NLMSG_ALIGN(((struct nlattr*)at)->nla_len))
        if (!found && ((struct nlattr*)at)->nla_type == attribute)
          found = at + NLA_HDRLEN;
      if (!(h->nlmsg_flags & NLM_F_MULTI))
        return found;
    }
  }
}

static int family_of(int fd) {
  struct message message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);
  int error, messages;
  add(&message, CTRL_ATTR_FAMILY_NAME, ADVERB_GENL_NAME, sizeof ADVERB_GENL_NAME);
  const uint16_t* id = ask(fd, &message, CTRL_ATTR_FAMILY_ID, &error, &messages);
  if (!id)
    fail("no family: %s", strerror(error));
  return *id;
}

static int regions_listed(void) {
  int fd = netlink(), error, messages;
  struct message message = request(family_of(fd), ADVERB_CMD_REGIONS, NLM_F_DUMP);
  ask(fd, &message, ADVERB_ATTR_START, &error, &messages);
  close(fd);
  return error ? -error : messages;
}

static void lists_own_regions(void) {
  int adverb = open_adverb(), status;
  for (int i = 0; i < 300; i++)
    create(adverb, (void*)(PAGE * (size_t)(i + 16)), PAGE);
  expect(regions_listed() >= 300, "root sees %d", regions_listed());
  pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0)
      _exit(200);
    int none = regions_listed();
    create(adverb, (void*)PAGE, PAGE);
    _exit(none == 0 && regions_listed() == 1 ? 0 : 1);
  }
  waitpid(child, &status, 0);
  expect(status == 0, "another user sees more than its own: %#x", status);
}

// In a namespace of its own a process is told its regions by the number it has there.
static void numbers_of_a_namespace(void) {
  int status;
  if (unshare(CLONE_NEWPID) != 0)
    skip("a namespace for processes: %s", strerror(errno));
  pid_t child = fork();
  if (child == 0) {
    int adverb = open_adverb(), error, messages;
    if (setuid(65532) != 0)
      _exit(200);
    create(adverb, (void*)PAGE, PAGE);
    int fd = netlink();
    struct message message = request(family_of(fd), ADVERB_CMD_REGIONS, NLM_F_DUMP);
    const uint32_t* pid = ask(fd, &message, ADVERB_ATTR_PID, &error, &messages);
    _exit(pid && messages == 1 && *pid == (uint32_t)getpid() && *pid == 1 ? 0 : 1);
  }
  waitpid(child, &status, 0);
  expect(status == 0, "it is told another number: %#x", status);
}

// Who is charged for a region can see it, also when only a dma-buf still holds it.
static void lists_what_is_charged(void) {
  int adverb = open_adverb(), error, messages;
  if (setuid(65531) != 0)
    skip("setuid: %s", strerror(errno));
  char* start = memory(PAGE);
  uint32_t region = create(adverb, start, PAGE);
  struct adverb_build build;
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  int fd = netlink();
  struct message message = request(family_of(fd), ADVERB_CMD_REGIONS, NLM_F_DUMP);
  const uint32_t* destroyed = ask(fd, &message, ADVERB_ATTR_DESTROYED, &error, &messages);
  expect(messages == 1 && destroyed && *destroyed == 0, "%d listed at first", messages);
  expect(destroy_errno(adverb, region) == 0, "destroy");
  destroyed = ask(fd, &message, ADVERB_ATTR_DESTROYED, &error, &messages);
  expect(messages == 1 && destroyed && *destroyed == 1, "%d listed while it is held", messages);
  close(build.fd);
  ask(fd, &message, ADVERB_ATTR_DESTROYED, &error, &messages);
  expect(messages == 0, "%d listed afterwards", messages);
}

static int set_limit(uint32_t regions) {
  int fd = netlink(), error, messages;
  struct message message = request(family_of(fd), ADVERB_CMD_SET_LIMITS, NLM_F_ACK);
  add(&message, ADVERB_ATTR_MAX_REGIONS, &regions, sizeof regions);
  ask(fd, &message, 0, &error, &messages);
  close(fd);
  return error;
}

static void limits_hold(void) {
  int adverb = open_adverb(), status;
  uint32_t region;
  expect(set_limit(2) == 0, "setting");
  create(adverb, (void*)PAGE, PAGE);
  create(adverb, (void*)PAGE, PAGE);
  int error = create_errno(adverb, (void*)PAGE, PAGE, &region);
  pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0)
      _exit(200);
    _exit(set_limit(5) == EPERM ? 0 : 1);
  }
  waitpid(child, &status, 0);
  expect(set_limit(8192) == 0, "setting back");
  expect(error == EDQUOT, "a third region: %s", strerror(error));
  expect(status == 0, "any user sets limits");
  create(adverb, (void*)PAGE, PAGE);
}

static void counts(void) {
  int fd = netlink(), error, messages, adverb = open_adverb();
  int family = family_of(fd);
  struct message message = request(family, ADVERB_CMD_STATISTICS, 0);
  uint64_t before, after;
  const void* value = ask(fd, &message, ADVERB_ATTR_ENTER, &error, &messages);
  expect(value, "no counter: %s", strerror(error));
  memcpy(&before, value, sizeof before);
  char* start = memory(64 * PAGE);
  uint32_t region = create(adverb, start, 64 * PAGE);
  struct adverb_build build;
  expect(build_errno(adverb, region, start, 0, &build) == 0, "build");
  fault_in(adverb, region, start, 64 * PAGE, false);
  memcpy(&after, ask(fd, &message, ADVERB_ATTR_ENTER, &error, &messages), sizeof after);
  expect(after - before >= 64, "%llu entered", (unsigned long long)(after - before));
}

// Any messages, attributes and lengths, to all commands.
static void any_messages(int count, unsigned seed) {
  int fd = netlink(), family = family_of(fd);
  struct timeval none = {.tv_usec = 1};
  static char sink[65536];
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  for (int i = 0; i < count; i++) {
    struct message message = request(family, rand_r(&seed) % 8, rand_r(&seed) & 0x304);
    for (int n = rand_r(&seed) % 6; n > 0; n--) {
      char junk[64];
      for (size_t k = 0; k < sizeof junk; k++)
        junk[k] = (char)rand_r(&seed);
      add(&message, rand_r(&seed) % 40, junk, (size_t)rand_r(&seed) % sizeof junk);
    }
    // Now and then well-formed, to the command that changes something.
    if (rand_r(&seed) % 8 == 0) {
      uint32_t regions = (uint32_t)rand_r(&seed);
      message = request(family, ADVERB_CMD_SET_LIMITS, 0);
      add(&message, ADVERB_ATTR_MAX_REGIONS, &regions, sizeof regions);
    }
    if (rand_r(&seed) % 4 == 0)
      message.header.nlmsg_len -= (unsigned)rand_r(&seed) % 4;
    send(fd, &message, message.header.nlmsg_len, MSG_DONTWAIT);
    while (recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0)
      ;
  }
  close(fd);
}

static struct limits {
  uint32_t regions;
  uint64_t pages;
} limits(void) {
  int fd = netlink(), error, messages;
  struct message message = request(family_of(fd), ADVERB_CMD_LIMITS, 0);
  struct limits limits;
  const void* value = ask(fd, &message, ADVERB_ATTR_MAX_REGIONS, &error, &messages);
  expect(value, "no limit: %s", strerror(error));
  memcpy(&limits.regions, value, sizeof limits.regions);
  memcpy(&limits.pages, ask(fd, &message, ADVERB_ATTR_MAX_PAGES, &error, &messages),
         sizeof limits.pages);
  close(fd);
  return limits;
}

static void restore(struct limits old) {
  int fd = netlink(), error, messages;
  struct message message = request(family_of(fd), ADVERB_CMD_SET_LIMITS, NLM_F_ACK);
  add(&message, ADVERB_ATTR_MAX_REGIONS, &old.regions, sizeof old.regions);
  add(&message, ADVERB_ATTR_MAX_PAGES, &old.pages, sizeof old.pages);
  ask(fd, &message, 0, &error, &messages);
  close(fd);
  expect(error == 0, "restoring the limits: %s", strerror(error));
}

static void any_message(void) {
  unsigned seed = new_seed();
  struct limits old = limits();
  any_messages(10000, seed);
  restore(old);
  counts();
}

static void any_message_of_a_stranger(void) {
  unsigned seed = new_seed();
  struct limits old = limits(), new;
  int status;
  pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0)
      _exit(200);
    any_messages(10000, seed);
    _exit(0);
  }
  waitpid(child, &status, 0);
  new = limits();
  expect(status == 0, "status %#x, seed %u", status, seed);
  expect(new.regions == old.regions&& new.pages == old.pages, "the limits are %u and %llu, seed %u",
         new.regions, (unsigned long long)new.pages, seed);
  counts();
}

int main(int count, char** words) {
  choose(count, words);
  run("unknown flags, views and ioctls are refused", flags_must_be_known);
  run("ranges that are empty, wrap or leave the address space are refused", ranges_are_checked);
  run("descriptors of something else are refused", other_files_are_refused);
  run("any fields at all: errors, and no more; nothing for those who are not the owner",
      any_fields);
  run("netlink lists a user's own regions, root's all", lists_own_regions);
  run("netlink tells a process its number in its own namespace", numbers_of_a_namespace);
  run("netlink lists what is charged, also if it was destroyed", lists_what_is_charged);
  run("netlink sets limits, for administrators, and they hold", limits_hold);
  run("netlink counts", counts);
  run("any netlink message at all: errors, and no more", any_message);
  run("any netlink message of another user changes nothing", any_message_of_a_stranger);
  return verdict();
}
