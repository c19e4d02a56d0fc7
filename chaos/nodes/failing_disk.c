/* Fails what a node writes with EIO while the file that CHAOS_EIO_WHILE names exists: writes, truncation, and syncs of regular files.
   Preloaded into one node's process; reads go on, as of a disk that takes nothing more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int fails(int descriptor) {
    const char *flag = getenv("CHAOS_EIO_WHILE");
    struct stat about;
    int before = errno, found = 0;
    if (flag != NULL && descriptor > 2 && access(flag, F_OK) == 0 && fstat(descriptor, &about) == 0)
        found = S_ISREG(about.st_mode) || S_ISDIR(about.st_mode);
    errno = found ? EIO : before;
    return found;
}

#define REAL(name) static __typeof__(name) *real; if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t write(int d, const void *b, size_t n) { REAL(write); return fails(d) ? -1 : real(d, b, n); }
ssize_t pwrite(int d, const void *b, size_t n, off_t o) { REAL(pwrite); return fails(d) ? -1 : real(d, b, n, o); }
ssize_t pwrite64(int d, const void *b, size_t n, off64_t o) { REAL(pwrite64); return fails(d) ? -1 : real(d, b, n, o); }
ssize_t pwritev(int d, const struct iovec *v, int c, off_t o) { REAL(pwritev); return fails(d) ? -1 : real(d, v, c, o); }
ssize_t pwritev64(int d, const struct iovec *v, int c, off64_t o) { REAL(pwritev64); return fails(d) ? -1 : real(d, v, c, o); }
ssize_t pwritev2(int d, const struct iovec *v, int c, off_t o, int f) { REAL(pwritev2); return fails(d) ? -1 : real(d, v, c, o, f); }
ssize_t pwritev64v2(int d, const struct iovec *v, int c, off64_t o, int f) { REAL(pwritev64v2); return fails(d) ? -1 : real(d, v, c, o, f); }
int ftruncate(int d, off_t n) { REAL(ftruncate); return fails(d) ? -1 : real(d, n); }
int ftruncate64(int d, off64_t n) { REAL(ftruncate64); return fails(d) ? -1 : real(d, n); }
int fdatasync(int d) { REAL(fdatasync); return fails(d) ? -1 : real(d); }
int fsync(int d) { REAL(fsync); return fails(d) ? -1 : real(d); }
