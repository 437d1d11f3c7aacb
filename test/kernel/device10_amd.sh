#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# AMD, addresses below 4 GiB: three levels.
# vm: qemu=10 iommu=amd device=edu,dma_mask=0xffffffffffffffff device=e1000e nodes=2
# timeout: 300
# shellcheck source=test/kernel/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/kernel/device_cases.sh
. "$(dirname "$0")/device_cases.sh"
if [[ "$VM_QEMU" == 10.0.[0-2] ]]; then
  echo "ok - QEMU 10, amd # SKIP QEMU $VM_QEMU's AMD IOMMU keeps all devices from memory; later ones do not"
  exit 0
fi
row 10 amd
device_cases 32
notices
