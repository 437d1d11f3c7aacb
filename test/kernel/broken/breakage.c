// SPDX-License-Identifier: GPL-2.0
/* Which step is left out (breakage.h). */
#include <linux/module.h>

#include "breakage.h"

int adverb_broken;
module_param_named(broken, adverb_broken, int, 0600);
MODULE_PARM_DESC(broken, "the step to leave out (breakage.h)");
