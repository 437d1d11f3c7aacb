// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Memory whose pages come and go in every way there is, and of which is known at any time what each
// byte may hold. Each word says where it is and how often its page has been written (its version),
// so that a byte from anywhere else, or from another time, is seen.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "np.h"

#define CHURN_HALF (2 * MIB) // anonymous memory, and then as much of a memfd
#define CHURN_LENGTH (2 * CHURN_HALF)
#define CHURN_PAGES (CHURN_LENGTH / PAGE)

// What the program knows of a page. A version begins before its first word is stored, and is done
// after the last.
struct churn_page {
  _Atomic uint32_t begun;
  _Atomic uint32_t done;
  _Atomic uint32_t zero_until;     // of all versions below this it may be lost, and zeros be there
  _Atomic uint32_t without_rights; // odd while it is
  atomic_flag taken;               // by an act that changes it or takes its rights
};

struct actor {
  unsigned seed;
  char* spare; // some pages of its own
  char* twins; // copies of churned pages, for KSM
};

extern struct churn_page churn_pages[CHURN_PAGES];
extern char* churn_start;
extern int churn_file;         // the memfd
extern bool churn_rights_stay; // no act takes them

// Maps it, 2 MiB aligned, and stores version 1.
void churn_make(void);
struct actor make_actor(unsigned seed);
size_t some(struct actor* actor, size_t count);
// Most often one of a few, where the acts and what is seen of them meet.
size_t some_page(struct actor* actor);

uint64_t tag(size_t page, size_t index, uint32_t version);
volatile uint64_t* word_at(size_t page, size_t index);

// Takes pages from `first` on, as many as are to be had of `count`, all of one kind of memory.
size_t take(size_t first, size_t count);
void give(size_t first, size_t count);
// The next version of taken pages; `zero`: the one before may be lost at any time from now on;
// `stays`: and nothing is stored instead.
void begin(size_t first, size_t count, bool zero, bool stays);
void store_words(size_t page);
void end(size_t first, size_t count);

// What threads do over and over. Stores, on pages that stay or have been taken away or freed.
void change(struct actor* actor);
// Whatever keeps what is in the pages.
void move(struct actor* actor);
// Gets hold of what others let go, and fills it with what is of nobody.
void reuse(struct actor* actor);
