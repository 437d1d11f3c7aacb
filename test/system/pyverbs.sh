#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# vm: hosts=1 mem=3072
# timeout: 900
# rdma-core's own tests on soft-RoCE, librdmacm's among them, stock and under adverb (test/pyverbs).
library=$(find "${ADVERB_BUILD:-build}" -name libadverb.so -type f | head -n 1)
exec "$(dirname "$0")/../pyverbs/compare" "$library" --device rxe0 --together --limit 240 \
  --policy default --policy unpinned
