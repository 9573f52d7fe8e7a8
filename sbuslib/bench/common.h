/* What all loads share: options, time, the daemon's CPU time, connections by the sbus protocol. */
#ifndef SBUS_BENCH_COMMON_H
#define SBUS_BENCH_COMMON_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, SEND_BUFFER = 425984, CHUNK = 65536, MOST = 1024, KEY = 22, HEAD = 4 + KEY + 1, STAMP = 12 };

static const char WHOAMI[] = "CMSG !/cred/whoami";

static const char *address, *receivers_address, *mode = "block", *frame_file, *in_fds = "", *out_fds = "", *pids;
static long total = 100000, warm, size = 100, publishers = 1, receivers = 1, keys = 1, dealt, stopped, churn, unit;
static long batch;
static double patience = 2;

static void die(const char *form, ...)
{
    va_list values;
    va_start(values, form);
    vfprintf(stderr, form, values);
    va_end(values);
    fputc('\n', stderr);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* -- the daemon's CPU time -- */

static int watched[16], watched_count;

static void watch(int pid)
{
    for (int i = 0; i < watched_count; i++)
        if (watched[i] == pid)
            return;
    if (pid > 0 && watched_count < 16)
        watched[watched_count++] = pid;
}

/* Ticks of user and system time of a process, and the core that it ran on last. */
static double ticks_of(int pid, int *core)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        die("%s: %s", path, strerror(errno));
    fclose(file);
    char *rest = strrchr(line, ')'); /* the name may contain any character */
    unsigned long user = 0, system = 0;
    sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
           "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &user, &system, core);
    return (double)(user + system) / sysconf(_SC_CLK_TCK);
}

/* Seconds of CPU that the watched processes have used. */
static double cpu(void)
{
    double sum = 0;
    for (int i = 0; i < watched_count; i++) {
        char path[320];
        snprintf(path, sizeof path, "/proc/%d/task", watched[i]);
        DIR *tasks = opendir(path);
        double used = 0;
        int exact = tasks != NULL;
        for (struct dirent *task; exact && (task = readdir(tasks));) {
            if (task->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", watched[i], task->d_name);
            FILE *file = fopen(path, "r");
            unsigned long long nanoseconds;
            if (!file || fscanf(file, "%llu", &nanoseconds) != 1)
                exact = 0;
            else
                used += nanoseconds / 1e9;
            if (file)
                fclose(file);
        }
        if (tasks)
            closedir(tasks);
        sum += exact ? used : ticks_of(watched[i], &(int){0});
    }
    return sum;
}

/* -- connections by the sbus protocol -- */

static int dial(const char *where)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct timeval limit = {30, 0};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), bytes = SEND_BUFFER;
    static const char abstract[] = "/dev/unix/abstract/"; /* followed by the name in hexadecimal, which begins with NUL */
    if (!strncmp(where, abstract, sizeof abstract - 1)) {
        const char *digits = where + sizeof abstract - 1;
        for (size_t i = 0; i < sizeof name.sun_path && digits[2 * i] && digits[2 * i + 1]; i++) {
            unsigned byte = 0;
            sscanf(digits + 2 * i, "%2x", &byte);
            name.sun_path[i] = byte;
        }
    } else if (strlen(where) >= sizeof name.sun_path)
        die("%s: too long", where);
    else
        strcpy(name.sun_path, where);
    while (connect(fd, (struct sockaddr *)&name, sizeof name))
        if (errno != EAGAIN || usleep(1000))
            die("%s: %s", where, strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void say(int fd, const char *form, ...)
{
    char packet[256];
    va_list values;
    va_start(values, form);
    int length = vsnprintf(packet, sizeof packet, form, values);
    va_end(values);
    if (send(fd, packet, length, MSG_NOSIGNAL) != length)
        die("the daemon takes no more: %s", strerror(errno));
}

/* Wait until the daemon has handled all packets sent here; only for connections that receive nothing else. */
static void barrier(int fd)
{
    char packet[4096];
    say(fd, WHOAMI);
    do {
        ssize_t length = recv(fd, packet, sizeof packet, 0);
        if (length <= 0)
            die("the daemon closed a connection, or is silent");
    } while (strncmp(packet, WHOAMI, sizeof WHOAMI - 1));
}

/* -- the result of round trips -- */

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void print_trips(double *times, double used, double seconds)
{
    int core = -1;
    if (watched_count)
        ticks_of(watched[0], &core);
    int is_shared = core == sched_getcpu();
    qsort(times, total, sizeof *times, by_size);
    printf("{\"messages\": %ld, \"deliveries\": %ld, \"received\": %ld, \"lost\": 0, \"disorder\": 0, "
           "\"seconds\": %.6f, \"cpu\": %.9f, \"median\": %.9f, \"p99\": %.9f, \"one_core\": %s}\n",
           2 * total, 2 * total, 2 * total, seconds, used, times[total / 2], times[total * 99 / 100],
           is_shared ? "true" : "false");
}

#endif
