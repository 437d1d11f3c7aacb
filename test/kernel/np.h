// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the test programs of this folder share: TAP, and adverb.ko's objects as a program sees them.
// Each call ends the program with its reason if it fails, unless its name ends in _errno: those
// return 0 or the errno.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../kernel/adverb_uapi.h"
#include "modules/adverb_test.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PAGE 4096UL
#define MIB (1UL << 20)

// Runs the test in a child, so that one that dies leaves no other without its verdict; one line of
// TAP.
void run(const char* name, void (*test)(void));

// The same for a test whose verdict depends on time or on what the kernel does when it likes: not
// in the gate.
void run_timed(const char* name, void (*test)(void));

// Whether this is a run of the gate (ADVERB_GATE is set): seeds and amounts are then fixed.
bool in_gate(void);
// Leaves out all tests whose name does not contain the first argument of main.
void choose(int count, char** words);
// In a test: how many seconds it may take, if not 100. Multiplied by ADVERB_SLOWNESS, which the
// scripts set where the kernel is slow.
void patience(unsigned seconds);
// In a test: ends it as failed with the reason, or as skipped.
void fail(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void skip(const char* format, ...) __attribute__((noreturn, format(printf, 1, 2)));
// In a test that passes: figures to show below its line.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
void fail_at(const char* condition, const char* format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
#define expect(condition, ...)                                                                     \
  do {                                                                                             \
    if (!(condition))                                                                              \
      fail_at(#condition, __VA_ARGS__);                                                            \
  } while (0)
// The exit status for main: 0 when all passed.
int verdict(void);

int open_adverb(void);
int create_errno(int adverb, const void* start, size_t length, uint32_t* region);
uint32_t create(int adverb, const void* start, size_t length);
int destroy_errno(int adverb, uint32_t region);
int build_errno(int adverb, uint32_t region, const void* address, int view,
                struct adverb_build* build);
int give_back_errno(int adverb, uint32_t region, const void* address, int view);
// Flags of ADVERB_IOC_FAULT_IN; *done may be NULL.
int bring_errno(int adverb, uint32_t region, const void* start, size_t length, unsigned flags,
                size_t* done);
int fault_in_errno(int adverb, uint32_t region, const void* start, size_t length, bool write,
                   size_t* done);
void fault_in(int adverb, uint32_t region, const void* start, size_t length, bool write);
struct adverb_query query(int adverb, uint32_t region);
// The first extent that ends behind the address.
int query_extent_errno(int adverb, uint32_t region, const void* address,
                       struct adverb_query_extent* query);
// Of a view of the extent at the address; reason: ADVERB_REASON_SIZE bytes.
int device_check_errno(int adverb, uint32_t region, const void* address, int view,
                       const char* device, char* reason);
int query_errno(int adverb, uint32_t region);

// A region of one extent with both views, its tables, and a device that has imported them.
struct image {
  int adverb;
  char* start; // page aligned
  size_t length;
  uint32_t region;
  struct adverb_build view[2];
  const volatile uint64_t* words[2];
  int device;
  uint64_t address[2];
  unsigned char pattern[PAGE];
};

// All of it but the device.
void make_views(struct image* image, void* start, size_t length);
// The device is "/dev/adverb_test_soft" or the like.
void make_image(struct image* image, const char* device, void* start, size_t length);
void drop_image(struct image* image);
// Moves bytes of a page by the device; 0 or the errno.
int device_read_errno(const struct image* image, size_t offset, void* data, size_t length);
int device_write_errno(const struct image* image, size_t offset, const void* data, size_t length);
// Whether the device reads the pattern there (the 8 bytes at offset); the word read goes to *word.
bool reads_pattern(const struct image* image, size_t offset, uint64_t* word);
uint64_t device_word(const struct image* image, size_t offset);
void device_store(const struct image* image, size_t offset, uint64_t word);
// The state word of a page's granule; its bit of this page, and its generation.
uint64_t state_word(const struct image* image, int view, size_t offset);
bool word_says_resident(const struct image* image, uint64_t word, size_t offset);
bool resident(const struct image* image, int view, size_t offset);
uint64_t generation(const struct image* image, int view, size_t offset);

// mmap of `length` bytes to read and write, in one extent if it is small; MAP_FAILED as mmap gives
// it.
char* mapped(size_t length, int flags, int fd);
// Anonymous private memory, placed like that.
char* memory(size_t length);
// Sets the first word of each page to `seed` + page number.
void fill(char* start, size_t length, uint64_t seed);
// A field of /proc/self/status in KiB.
long status_kib(const char* field);
void write_file(const char* path, const char* text);
// What was done to pages waits in lists of each CPU; this ends the waiting, and moves nothing.
void drain_lists(void);
// The name of the first device on a PCI bus ("0000:00") that the driver has; a test without one
// fails.
const char* pci_device(const char* driver, const char* bus);
// A userfaultfd with these features; a test that cannot have it is skipped.
int userfaults(uint64_t features);
