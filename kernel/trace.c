// SPDX-License-Identifier: GPL-2.0
/* What trace.h declares. */
#define CREATE_TRACE_POINTS
#include "trace.h"
