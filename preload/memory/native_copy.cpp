// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "memory/native_copy.h"

// Everywhere between the labels r8 is the end of what is to be written and rdi the start of what is
// not known to be: at a fault their difference is the answer. (`rep movs` leaves rdi and rsi at the
// element that faulted.) movsq, not movsb: a processor without fast strings, and an emulator, moves
// an element at a time. And not where the target begins less than 64 bytes behind the source, pages
// aside: there processors with fast strings, of Intel and AMD both, fall back to a few bytes at a
// time (sixteen times as long on a Zen 4; glibc avoids the same in its memcpy, by
// Avoid_Short_Distance_REP_MOVSB). A loop copies that.
#if defined(ADVERB_NATIVE_COPY)
asm(R"(
.text
.p2align 4
.hidden adverb_copy_begin
.globl adverb_copy_begin
adverb_copy_begin:
.hidden adverb_copy
.globl adverb_copy
.type adverb_copy, @function
adverb_copy:
  .cfi_startproc
  leaq (%rdi,%rdx), %r8
  cmpq $128, %rdx
  jae 7f
  testb $64, %dl
  jz 1f
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups 32(%rsi), %xmm2
  movups 48(%rsi), %xmm3
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  movups %xmm2, 32(%rdi)
  movups %xmm3, 48(%rdi)
  addq $64, %rsi
  addq $64, %rdi
  andl $63, %edx
  jz adverb_copy_failed
1:
  testb $32, %dl
  jz 2f
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  addq $32, %rsi
  addq $32, %rdi
2:
  testb $16, %dl
  jz 3f
  movups (%rsi), %xmm0
  movups %xmm0, (%rdi)
  addq $16, %rsi
  addq $16, %rdi
3:
  testb $8, %dl
  jz 4f
  movq (%rsi), %rax
  movq %rax, (%rdi)
  addq $8, %rsi
  addq $8, %rdi
4:
  testb $7, %dl
  jz adverb_copy_failed
  testb $4, %dl
  jz 5f
  movl (%rsi), %eax
  movl %eax, (%rdi)
  addq $4, %rsi
  addq $4, %rdi
5:
  testb $2, %dl
  jz 6f
  movzwl (%rsi), %eax
  movw %ax, (%rdi)
  addq $2, %rsi
  addq $2, %rdi
6:
  testb $1, %dl
  jz adverb_copy_failed
  movzbl (%rsi), %eax
  movb %al, (%rdi)
  incq %rdi
.hidden adverb_copy_failed
.globl adverb_copy_failed
adverb_copy_failed:
  movq %r8, %rax
  subq %rdi, %rax
  ret
7:
  movl %edi, %eax
  subl %esi, %eax
  andl $4095, %eax
  decl %eax
  cmpl $63, %eax
  jb 8f
  movq %rdx, %rcx
  shrq $3, %rcx
  andl $7, %edx
  rep movsq
  jmp 4b
8:
  movups (%rsi), %xmm0
  movups 16(%rsi), %xmm1
  movups 32(%rsi), %xmm2
  movups 48(%rsi), %xmm3
  movups %xmm0, (%rdi)
  movups %xmm1, 16(%rdi)
  movups %xmm2, 32(%rdi)
  movups %xmm3, 48(%rdi)
  addq $64, %rsi
  addq $64, %rdi
  subq $64, %rdx
  cmpq $64, %rdx
  jae 8b
  jmp 1b
  .cfi_endproc
.size adverb_copy, .-adverb_copy

.hidden adverb_store8
.globl adverb_store8
.type adverb_store8, @function
adverb_store8:
  .cfi_startproc
  leaq 8(%rdi), %r8
  movq %rsi, (%rdi)
  xorl %eax, %eax
  ret
  .cfi_endproc
.size adverb_store8, .-adverb_store8
.hidden adverb_store4
.globl adverb_store4
.type adverb_store4, @function
adverb_store4:
  .cfi_startproc
  leaq 4(%rdi), %r8
  movl %esi, (%rdi)
  xorl %eax, %eax
  ret
  .cfi_endproc
.size adverb_store4, .-adverb_store4
.hidden adverb_store2
.globl adverb_store2
.type adverb_store2, @function
adverb_store2:
  .cfi_startproc
  leaq 2(%rdi), %r8
  movw %si, (%rdi)
  xorl %eax, %eax
  ret
  .cfi_endproc
.size adverb_store2, .-adverb_store2
.hidden adverb_store1
.globl adverb_store1
.type adverb_store1, @function
adverb_store1:
  .cfi_startproc
  leaq 1(%rdi), %r8
  movb %sil, (%rdi)
  xorl %eax, %eax
  ret
  .cfi_endproc
.size adverb_store1, .-adverb_store1
.hidden adverb_copy_end
.globl adverb_copy_end
adverb_copy_end:
)");
#endif
