/* Fails system calls on order: loaded with LD_PRELOAD, harmless until fault_arm() is called.

   Calls on files whose path holds `part` are counted, those of the kinds in `kinds`; the nth of
   them (and, if sticky, every later one) fails, is cut short, kills the process or stops it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, RENAME = 8, OPEN = 16, UNLINK = 32, SEND = 64 };
enum { SHORT = -1, KILL = -2, STOP = -3 };

static char part[512];
static unsigned kinds;
static long nth, seen;
static int fired;
static int action, sticky;

void fault_arm(const char *new_part, unsigned new_kinds, long new_nth, int what, int stays) {
    strncpy(part, new_part, sizeof part - 1);
    nth = new_nth, action = what, sticky = stays, seen = 0, fired = 0;
    kinds = new_kinds;
}
void fault_disarm(void) { kinds = 0; }
int fault_fired(void) { return fired; }

/* Returns 0: go on; else the action. */
static int hit(unsigned kind, const char *path) {
    if (!(kinds & kind) || (path && !strstr(path, part))) return 0;
    long mine = __sync_add_and_fetch(&seen, 1);
    if (mine < nth || (mine > nth && !sticky)) return 0;
    __sync_add_and_fetch(&fired, 1);
    if (action == KILL) kill(getpid(), SIGKILL);
    if (action == STOP) { kill(getpid(), SIGSTOP); return 0; }
    return action;
}
static int hit_fd(unsigned kind, int fd) {
    if (!(kinds & kind)) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return hit(kind, path);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(what) do { if ((what) > 0) { errno = (what); return -1; } } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int what = hit_fd(WRITE, fd);
    FAIL(what);
    return real(fd, data, what == SHORT ? size / 2 : size);
}
#define PWRITE(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t size, offset_type at) { \
        REAL(name); \
        int what = hit_fd(WRITE, fd); \
        FAIL(what); \
        return real(fd, data, what == SHORT ? size / 2 : size, at); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define BY_FD(name, kind) \
    int name(int fd) { REAL(name); int what = hit_fd(kind, fd); FAIL(what); return real(fd); }
BY_FD(fsync, SYNC)
BY_FD(fdatasync, SYNC)

#define CUT(name, offset_type) \
    int name(int fd, offset_type size) { \
        REAL(name); int what = hit_fd(TRUNCATE, fd); FAIL(what); return real(fd, size); \
    }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(rename);
    int what = hit(RENAME, to);
    FAIL(what);
    return real(from, to);
}
int unlink(const char *path) {
    REAL(unlink);
    int what = hit(UNLINK, path);
    FAIL(what);
    return real(path);
}
#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int what = hit(OPEN, path); \
        FAIL(what); \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(send);
    int what = hit(SEND, NULL);
    FAIL(what);
    return real(fd, data, size, flags);
}
