/* A disk that forgets what was not synced, for processes that are started with this in LD_PRELOAD.
 *
 * It stands between a program and the databases in one directory (files with ".db" in their name, but
 * not the "-shm" ones), and keeps beside them what a power cut would leave:
 *
 *   synced/INODE   the bytes that an fsync has brought to the disk
 *   dirty/INODE    a byte per page: written since the last fsync, however that ended
 *   held/INODE     a link to the file, so that no other file ever gets its number
 *   names          the names that an fsync of the directory has brought to the disk
 *
 * As in Linux, an fsync that fails takes the dirty pages for clean without writing them: they can still
 * be read, and the next fsync succeeds without them. Nothing of it needs the real fsync, so that is not
 * made. The state is in files, so it outlives the process as the kernel's would.
 *
 * Which operation fails is said in the page "control", shared with the test (see disk/mod.rs, which
 * has the same list of fields). */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define PAGE 4096
#define FDS_MAX 65536
#define NAME_MAX_HERE 64

enum { WRITE = 1, SYNC = 2 };

struct control {
  uint64_t operations; /* writes and syncs so far, of the kinds and files asked for */
  uint64_t fail_at;    /* the first one to fail, counted from 1; 0: none */
  uint64_t fail_count; /* how many fail from there on */
  uint64_t fail_errno;
  uint64_t kinds; /* WRITE | SYNC */
  uint64_t die;   /* end the process at the first operation after a failed one */
  uint64_t hits;
  uint64_t bytes_read;
  char prefix[NAME_MAX_HERE]; /* only files whose names begin with it */
};

struct open_file {
  ino_t inode; /* 0: not ours */
  int is_directory;
  char name[NAME_MAX_HERE];
};

static struct open_file files[FDS_MAX];
static struct control *control;
static const char *data, *home;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);

static void find_real_ones(void) {
  if (real_unlink) return;
  real_open = dlsym(RTLD_NEXT, "open64");
  real_openat = dlsym(RTLD_NEXT, "openat64");
  real_close = dlsym(RTLD_NEXT, "close");
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
  real_read = dlsym(RTLD_NEXT, "read");
  real_pread = dlsym(RTLD_NEXT, "pread64");
  real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
  real_fsync = dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
  real_rename = dlsym(RTLD_NEXT, "rename");
  real_unlink = dlsym(RTLD_NEXT, "unlink");
}

__attribute__((constructor)) static void begin(void) {
  find_real_ones();
  data = getenv("FORGETFUL_DATA");
  home = getenv("FORGETFUL_HOME");
  if (!data || !home) return;
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/control", home);
  int fd = real_open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) abort();
  control = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  real_close(fd);
  if (control == MAP_FAILED) abort();
}

static void beside(char *path, const char *kind, ino_t inode) {
  snprintf(path, PATH_MAX, "%s/%s/%llu", home, kind, (unsigned long long)inode);
}

/* The name of a database in the directory, or NULL. */
static const char *ours(const char *path) {
  if (!control || !path) return NULL;
  size_t length = strlen(data);
  if (strncmp(path, data, length) != 0 || path[length] != '/') return NULL;
  const char *name = path + length + 1;
  if (strchr(name, '/') || !strstr(name, ".db") || strstr(name, "-shm")) return NULL;
  return strlen(name) < NAME_MAX_HERE ? name : NULL;
}

static void copy_whole(int from, int to) {
  char page[PAGE];
  off_t at = 0;
  ssize_t got;
  while ((got = real_pread(from, page, PAGE, at)) > 0) {
    if (real_pwrite(to, page, got, at) != got) abort();
    at += got;
  }
}

/* Begin to remember a file. One that was there before anybody remembered it is on the disk. */
static void adopt(const char *path, ino_t inode, int is_new) {
  char held[PATH_MAX], synced[PATH_MAX];
  beside(held, "held", inode);
  if (link(path, held) != 0) {
    if (errno == EEXIST) return;
    abort();
  }
  beside(synced, "synced", inode);
  int to = real_open(synced, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (to < 0) abort();
  if (!is_new) {
    int from = real_open(held, O_RDONLY | O_CLOEXEC);
    if (from < 0) abort();
    copy_whole(from, to);
    real_close(from);
  }
  real_close(to);
}

static int remember(int fd, const char *path, int was_there) {
  if (fd < 0 || fd >= FDS_MAX || !control) return fd;
  int error = errno;
  const char *name = ours(path);
  struct stat facts;
  if (name && fstat(fd, &facts) == 0) {
    pthread_mutex_lock(&lock);
    adopt(path, facts.st_ino, !was_there);
    files[fd].inode = facts.st_ino;
    files[fd].is_directory = 0;
    strcpy(files[fd].name, name);
    pthread_mutex_unlock(&lock);
  } else if (strcmp(path, data) == 0 && fstat(fd, &facts) == 0) {
    files[fd].inode = facts.st_ino;
    files[fd].is_directory = 1;
  }
  errno = error;
  return fd;
}

static struct open_file *file(int fd) {
  if (!control || fd < 0 || fd >= FDS_MAX || files[fd].inode == 0) return NULL;
  return &files[fd];
}

/* Count an operation. The error it is to end with, or 0. */
static int fault(struct open_file *file, int kind) {
  if (control->die && control->hits) _exit(9);
  int asked = file->is_directory ||
              strncmp(file->name, control->prefix, strlen(control->prefix)) == 0;
  if (!(control->kinds & kind) || !asked) return 0;
  uint64_t n = ++control->operations;
  uint64_t from = control->fail_at;
  if (from == 0 || n < from || n - from >= control->fail_count) return 0;
  control->hits++;
  return (int)control->fail_errno;
}

static void mark_dirty(ino_t inode, off_t from, off_t to) {
  char path[PATH_MAX], ones[PAGE];
  beside(path, "dirty", inode);
  int fd = real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) abort();
  memset(ones, 1, sizeof ones);
  off_t page = from / PAGE, end = (to + PAGE - 1) / PAGE;
  while (page < end) {
    size_t some = end - page < PAGE ? (size_t)(end - page) : PAGE;
    if (real_pwrite(fd, ones, some, page) != (ssize_t)some) abort();
    page += some;
  }
  real_close(fd);
}

/* Bring dirty pages to the disk, or only take them for clean. */
static void clean(ino_t inode, int lose) {
  char path[PATH_MAX], page[PAGE], marks[PAGE];
  beside(path, "dirty", inode);
  int dirty = real_open(path, O_RDONLY | O_CLOEXEC);
  if (!lose) {
    struct stat facts;
    beside(path, "held", inode);
    int from = real_open(path, O_RDONLY | O_CLOEXEC);
    beside(path, "synced", inode);
    int to = real_open(path, O_RDWR | O_CLOEXEC);
    if (from < 0 || to < 0 || fstat(from, &facts) != 0) abort();
    ssize_t got;
    for (off_t first = 0; dirty >= 0 && (got = real_pread(dirty, marks, PAGE, first)) > 0; first += got) {
      for (ssize_t n = 0; n < got; n++) {
        if (!marks[n]) continue;
        off_t at = (first + n) * PAGE;
        ssize_t bytes = real_pread(from, page, PAGE, at);
        if (bytes > 0 && real_pwrite(to, page, bytes, at) != bytes) abort();
      }
    }
    if (real_ftruncate(to, facts.st_size) != 0) abort();
    real_close(from);
    real_close(to);
  }
  if (dirty >= 0) {
    real_close(dirty);
    beside(path, "dirty", inode);
    real_unlink(path);
  }
}

/* The names that are in the directory now are on the disk. */
static void keep_names(void) {
  char path[PATH_MAX], kept[PATH_MAX];
  snprintf(path, sizeof path, "%s/names.new", home);
  snprintf(kept, sizeof kept, "%s/names", home);
  FILE *out = fopen(path, "we");
  DIR *folder = opendir(data);
  if (!out || !folder) abort();
  struct dirent *entry;
  while ((entry = readdir(folder))) {
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", data, entry->d_name);
    if (ours(full)) fprintf(out, "%s %llu\n", entry->d_name, (unsigned long long)entry->d_ino);
  }
  closedir(folder);
  if (fclose(out) != 0 || real_rename(path, kept) != 0) abort();
}

static int any_open(int at, const char *path, int flags, mode_t mode) {
  find_real_ones();
  int was_there = path && access(path, F_OK) == 0;
  int fd = at == AT_FDCWD ? real_open(path, flags, mode) : real_openat(at, path, flags, mode);
  return remember(fd, path, was_there);
}

#define OPEN(name)                                        \
  int name(const char *path, int flags, ...) {            \
    va_list more;                                         \
    va_start(more, flags);                                \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                         \
    return any_open(AT_FDCWD, path, flags, mode);         \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                      \
  int name(int at, const char *path, int flags, ...) {    \
    va_list more;                                         \
    va_start(more, flags);                                \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                         \
    return any_open(at, path, flags, mode);               \
  }
OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
  find_real_ones();
  if (fd >= 0 && fd < FDS_MAX) files[fd].inode = 0;
  return real_close(fd);
}

static ssize_t written(int fd, const void *bytes, size_t count, off_t at) {
  struct open_file *to = &files[fd];
  pthread_mutex_lock(&lock);
  int error = fault(to, WRITE);
  ssize_t done = -1;
  if (!error) {
    done = real_pwrite(fd, bytes, count, at);
    error = errno;
    if (done > 0) mark_dirty(to->inode, at, at + done);
  }
  pthread_mutex_unlock(&lock);
  if (done < 0) errno = error;
  return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
  find_real_ones();
  if (!file(fd)) return real_write(fd, bytes, count);
  off_t at = lseek(fd, 0, SEEK_CUR);
  ssize_t done = written(fd, bytes, count, at);
  if (done > 0) lseek(fd, at + done, SEEK_SET);
  return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t at) {
  find_real_ones();
  return file(fd) ? written(fd, bytes, count, at) : real_pwrite(fd, bytes, count, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
  return pwrite64(fd, bytes, count, at);
}

static ssize_t seen(int fd, ssize_t got) {
  if (got > 0 && file(fd)) __atomic_add_fetch(&control->bytes_read, got, __ATOMIC_RELAXED);
  return got;
}

ssize_t read(int fd, void *bytes, size_t count) {
  find_real_ones();
  return seen(fd, real_read(fd, bytes, count));
}

ssize_t pread64(int fd, void *bytes, size_t count, off_t at) {
  find_real_ones();
  return seen(fd, real_pread(fd, bytes, count, at));
}

ssize_t pread(int fd, void *bytes, size_t count, off_t at) { return pread64(fd, bytes, count, at); }

int ftruncate64(int fd, off_t size) {
  find_real_ones();
  struct open_file *to = file(fd);
  if (!to) return real_ftruncate(fd, size);
  pthread_mutex_lock(&lock);
  int error = fault(to, WRITE), done = -1;
  if (!error) {
    struct stat facts;
    off_t before = fstat(fd, &facts) == 0 ? facts.st_size : 0;
    done = real_ftruncate(fd, size);
    error = errno;
    if (done == 0 && size < before) mark_dirty(to->inode, size, before);
    if (done == 0 && size > before) mark_dirty(to->inode, before, size);
  }
  pthread_mutex_unlock(&lock);
  if (done < 0) errno = error;
  return done;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(struct open_file *file) {
  pthread_mutex_lock(&lock);
  int error = fault(file, SYNC);
  if (!file->is_directory) clean(file->inode, error != 0);
  else if (!error) keep_names();
  pthread_mutex_unlock(&lock);
  if (!error) return 0;
  errno = error;
  return -1;
}

int fsync(int fd) {
  find_real_ones();
  return file(fd) ? synced(file(fd)) : real_fsync(fd);
}

int fdatasync(int fd) {
  find_real_ones();
  return file(fd) ? synced(file(fd)) : real_fdatasync(fd);
}

/* Bytes must go by ways we watch. */
ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t count, unsigned flags) {
  (void)from, (void)from_at, (void)to, (void)to_at, (void)count, (void)flags;
  errno = ENOSYS;
  return -1;
}
