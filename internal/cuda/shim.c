//go:build gpu

/* Defines the CUDA driver's entry points in place of a link to libcuda, so that one program runs with a driver,
 * without one, and without a visible device.
 *
 * Each symbol jumps to the address in its slot. At first that is shim_resolve, which loads the driver, fills all
 * slots and goes on to the right function: a program that never uses CUDA never touches the driver. An entry point
 * that is missing answers 34 (no driver, or only the toolkit's stub library) or 36 (the driver is too old for it).
 *
 * cuInit alone is different: the init function of package cu calls it and ends the process on any error. Here
 * it does nothing; shim_load makes the real call and keeps its status. */

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "build tag gpu: want linux on amd64 or arm64"
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "shim.h"

static const char *const names[] = {
#define X(name) #name,
#include "shim_symbols.h"
#undef X
};

#define NUM_SYMBOLS (sizeof names / sizeof names[0])

/* The slots, in the order of names. */
__attribute__((visibility("hidden"))) extern void *shim_slots[NUM_SYMBOLS];
__asm__(".data\n.p2align 3\n.hidden shim_slots\n.globl shim_slots\nshim_slots:\n"
#define X(name) "shim_slot_" #name ": .quad shim_resolve\n"
#include "shim_symbols.h"
#undef X
	".text\n");

/* The entry points. shim_resolve is entered with the slot's address in a scratch register; it keeps the registers
 * that hold arguments, and those on the stack stay where they are. */
#if defined(__x86_64__)
__asm__(".text\n.type shim_resolve,@function\nshim_resolve:\n"
	"push %r11\npush %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\n"
	"sub $32, %rsp\nmovsd %xmm0, (%rsp)\nmovsd %xmm1, 8(%rsp)\nmovsd %xmm2, 16(%rsp)\nmovsd %xmm3, 24(%rsp)\n"
	"call shim_load\n"
	"movsd (%rsp), %xmm0\nmovsd 8(%rsp), %xmm1\nmovsd 16(%rsp), %xmm2\nmovsd 24(%rsp), %xmm3\nadd $32, %rsp\n"
	"pop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\npop %r11\n"
	"jmp *(%r11)\n.size shim_resolve, .-shim_resolve\n"
#define X(name) \
	".globl " #name "\n.type " #name ",@function\n" #name ":\n" \
	"lea shim_slot_" #name "(%rip), %r11\njmp *(%r11)\n.size " #name ", .-" #name "\n"
#include "shim_symbols.h"
#undef X
);
#else /* aarch64 */
__asm__(".text\n.p2align 2\n.type shim_resolve,%function\nshim_resolve:\n"
	"stp x29, x30, [sp, #-128]!\nmov x29, sp\n"
	"stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\nstp x6, x7, [sp, #64]\n"
	"stp x8, x16, [sp, #80]\nstp d0, d1, [sp, #96]\nstp d2, d3, [sp, #112]\n"
	"bl shim_load\n"
	"ldp d2, d3, [sp, #112]\nldp d0, d1, [sp, #96]\nldp x8, x16, [sp, #80]\n"
	"ldp x6, x7, [sp, #64]\nldp x4, x5, [sp, #48]\nldp x2, x3, [sp, #32]\nldp x0, x1, [sp, #16]\n"
	"ldp x29, x30, [sp], #128\n"
	"ldr x17, [x16]\nbr x17\n.size shim_resolve, .-shim_resolve\n"
#define X(name) \
	".globl " #name "\n.type " #name ",%function\n" #name ":\n" \
	"adrp x16, shim_slot_" #name "\nadd x16, x16, :lo12:shim_slot_" #name "\n" \
	"ldr x17, [x16]\nbr x17\n.size " #name ", .-" #name "\n"
#include "shim_symbols.h"
#undef X
);
#endif

static int no_driver(void) { return SHIM_NO_DRIVER; }
static int old_driver(void) { return SHIM_OLD_DRIVER; }

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int status;
static char reason[512];

static void load(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		const char *e = dlerror();
		snprintf(reason, sizeof reason, "%s", e != NULL ? e : "libcuda.so.1: not found");
	}
	int (*init)(unsigned int) = lib != NULL ? (int (*)(unsigned int))dlsym(lib, "cuInit") : NULL;
	status = init != NULL ? init(0) : SHIM_NO_DRIVER;
	void *missing = status == SHIM_NO_DRIVER ? (void *)no_driver : (void *)old_driver;
	for (size_t i = 0; i < NUM_SYMBOLS; i++) {
		void *f = init != NULL ? dlsym(lib, names[i]) : NULL;
		__atomic_store_n(&shim_slots[i], f != NULL ? f : missing, __ATOMIC_RELEASE);
	}
}

int shim_load(void) {
	pthread_once(&once, load);
	return status;
}

const char *shim_reason(void) {
	shim_load();
	return reason;
}

int cuInit(unsigned int flags) {
	(void)flags;
	return 0;
}
