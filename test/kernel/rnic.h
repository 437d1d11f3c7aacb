// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The soft RNIC (test/vm/rxe), with both views of churn.h's memory registered.
#pragma once

#include "np.h"
#include "rc.h"

#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

extern struct image image;
extern struct rc_device nic;
extern struct rc_region regions[2]; // of the read view and of the write view

void begin_region(void);
void end_region(void);
void register_view(int view, int access);

void be_hostile(bool hostile);
// How often it did what it is hostile by: "pieces", "repeats", "passed".
long hostile_count(const char* what);
// How many a test should do.
long operations(void);
