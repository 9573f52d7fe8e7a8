/* A load on a daemon, and what it cost: one JSON object on standard output.
 *
 *     load packets -a ADDRESS [options]    messages from publishers to receivers, by the sbus protocol
 *     load trip -a ADDRESS [options]       one message there and one back, again and again
 *     load stream -i FDS -o FDS [options]  the same over byte streams that stand already, for other brokers
 *     load streamtrip -i FD -o FD [options]
 *
 * Options (numbers are decimal):
 *
 *     -a ADDRESS  path of the daemon's socket      -b ADDRESS  where the receivers are, if elsewhere
 *     -n COUNT    messages in all, or trips        -w COUNT    as many before the measurement
 *     -s BYTES    payload                          -p COUNT    publishers          -r COUNT  receivers
 *     -k COUNT    keys in turn; 0: all different   -d          each receiver has a key of its own
 *     -m MODE     soft mode of the receivers       -x COUNT    further receivers that never read
 *     -B COUNT    messages in a batch (batch/on): a packet each; without, one message a packet
 *     -c COUNT    patterns that a further client subscribes to, and gives up again, each second
 *     -P PIDS     processes whose CPU time is read; else the peer's of the socket
 *     -i FDS, -o FDS  descriptors to receive from and to send to       -f FILE  what is sent for each message
 *     -z BYTES    what is received for each message                    -t SECONDS  of silence until the rest is lost
 *
 * Publishers send as fast as they are let, 64 packets a call, from a thread each; one thread reads for all receivers,
 * 64 packets a call. Every payload begins with the publisher's number and a running one, which receivers check. At the
 * end each connection asks whoami: the answer stands in line behind all that was for it, so whatever has not come by
 * then is lost. CPU time is the scheduler's own account, in nanoseconds, of all threads of the processes.
 */
#define _GNU_SOURCE
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

/* -- options -- */

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

static double ticks_of(int pid)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        die("%s: %s", path, strerror(errno));
    fclose(file);
    char *rest = strrchr(line, ')'); /* the name may hold anything */
    unsigned long user = 0, system = 0;
    sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
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
        sum += exact ? used : ticks_of(watched[i]);
    }
    return sum;
}

/* -- connections by the sbus protocol -- */

static int dial(const char *where)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct timeval limit = {30, 0};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), bytes = SEND_BUFFER;
    static const char abstract[] = "/dev/unix/abstract/"; /* then the whole name in hexadecimal, its NUL first */
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

/* Wait until the daemon has acted on all that was said here; only for connections that nothing else comes to. */
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

/* -- forms of a message: what a publisher sends, and what a receiver makes of a packet -- */

static uint32_t nonce; /* so that keys of an earlier run are not met again */

struct publisher {
    pthread_t thread;
    int fd, number;
    uint64_t next, end; /* running numbers */
    char *data;
    long most, kinds; /* of a batch: messages, keys */
    struct mmsghdr headers[BATCH];
    struct iovec parts[BATCH];
};

struct receiver {
    int fd, done;
    uint64_t received, disorder, bytes, expected[64];
};

static uint64_t key_of(const struct publisher *self, uint64_t number)
{
    if (dealt)
        return number % receivers;
    return keys ? number % keys : number * publishers + self->number;
}

/* Write the part of a key that differs from message to message. */
static void write_key(const struct publisher *self, char *key, uint64_t number)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t which = key_of(self, number);
    for (int i = KEY - 1; i >= KEY - 8; i--, which >>= 4)
        key[i] = digits[which & 15];
}

static void stamp(const struct publisher *self, char *payload, uint64_t number)
{
    if (size >= STAMP) {
        memcpy(payload, &self->number, 4);
        memcpy(payload + 4, &number, 8);
    }
}

/* Count a payload, and check that it comes after the one before of the same publisher. */
static void check(struct receiver *self, const char *payload)
{
    uint32_t from;
    uint64_t number;
    self->received++;
    if (size < STAMP)
        return;
    memcpy(&from, payload, 4);
    memcpy(&number, payload + 4, 8);
    if (from >= 64 || number < self->expected[from])
        self->disorder++;
    else
        self->expected[from] = number + 1;
}

/* One message a packet: lay out the next packets; how many. */
static int plain_fill(struct publisher *self)
{
    int n = 0;
    for (; n < BATCH && self->next < self->end; n++, self->next++) {
        char *packet = self->parts[n].iov_base;
        if (keys != 1 || dealt)
            write_key(self, packet + 4, self->next);
        stamp(self, packet + HEAD, self->next);
    }
    return n;
}

static void plain_prepare(struct publisher *self)
{
    self->data = calloc(BATCH, HEAD + size);
    for (int i = 0; i < BATCH; i++) {
        char *packet = self->data + i * (HEAD + size);
        sprintf(packet, "MSG bench/%07x/%08x", keys ? 0 : nonce & 0xfffffff, 0);
        memset(packet + HEAD, 'x', size);
        self->parts[i] = (struct iovec){packet, HEAD + size};
        self->headers[i].msg_hdr.msg_iov = &self->parts[i];
        self->headers[i].msg_hdr.msg_iovlen = 1;
    }
}

/* Count what a packet brings. */
static void plain_take(struct receiver *self, const char *packet, unsigned length)
{
    if (length == HEAD + size)
        check(self, packet + HEAD);
    else {
        self->received++;
        self->disorder++;
    }
}

/* Many messages a packet, as docs/protocol.md tells under batch/on: numbers of 32 bits, little-endian like the machine;
 * the length of each key, the length of each payload, the number of each message's key where there are several, the
 * keys, the payloads. */
enum { COLUMNS = 20, BATCH_KEYS = 256, BATCH_MESSAGES = 4096, BATCH_AREA = 417792 };

static const char BATCH_HEAD[12] = "CMSG batch\0\1";

/* Lay out all of a batch of n messages but what differs from one to the next; how long it is. */
static size_t batched_layout(struct publisher *self, uint32_t n, char **key, char **payload)
{
    char *packet = self->data;
    uint32_t k = self->kinds < n ? self->kinds : n, key_length = KEY, payload_length = size;
    memcpy(packet, BATCH_HEAD, sizeof BATCH_HEAD);
    memcpy(packet + 12, &n, 4);
    memcpy(packet + 16, &k, 4);
    for (uint32_t i = 0; i < k; i++)
        memcpy(packet + COLUMNS + 4 * i, &key_length, 4);
    for (uint32_t i = 0; i < n; i++)
        memcpy(packet + COLUMNS + 4 * (k + i), &payload_length, 4);
    char *numbers = packet + COLUMNS + 4 * (k + n);
    for (uint32_t i = 0; k > 1 && i < n; i++)
        numbers[i] = i % k;
    *key = numbers + (k > 1 ? n : 0);
    *payload = *key + k * KEY;
    for (uint32_t i = 0; i < k; i++) {
        char name[KEY + 1];
        sprintf(name, "bench/%07x/%08x", keys ? 0 : nonce & 0xfffffff, 0);
        memcpy(*key + i * KEY, name, KEY);
    }
    memset(*payload, 'x', n * size);
    return *payload + n * size - packet;
}

static void batched_prepare(struct publisher *self)
{
    /* Keys of a batch are those of its first messages, so that with keys in turn each message has its own. */
    self->kinds = dealt ? receivers : keys ? keys : BATCH_KEYS;
    self->most = batch < BATCH_MESSAGES ? batch : BATCH_MESSAGES;
    if (self->kinds > BATCH_KEYS || !keys)
        self->kinds = self->most = self->most < BATCH_KEYS ? self->most : BATCH_KEYS;
    while (self->most > 1 && COLUMNS + self->most * (9 + size) + self->kinds * KEY > 409600)
        self->most--;
    self->data = calloc(1, BATCH_AREA);
    self->parts[0].iov_base = self->data;
    self->headers[0].msg_hdr.msg_iov = &self->parts[0];
    self->headers[0].msg_hdr.msg_iovlen = 1;
    say(self->fd, "CMSG batch/on");
}

static int batched_fill(struct publisher *self)
{
    char *key, *payload;
    uint64_t left = self->end - self->next;
    long n = left < (uint64_t)self->most ? (long)left : self->most, k = self->kinds < n ? self->kinds : n;
    if (!n)
        return 0;
    self->parts[0].iov_len = batched_layout(self, n, &key, &payload);
    for (long i = 0; i < k && (keys != 1 || dealt); i++)
        write_key(self, key + i * KEY, self->next + i);
    for (long i = 0; i < n; i++)
        stamp(self, payload + i * size, self->next + i);
    self->next += n;
    return 1;
}

static void batched_take(struct receiver *self, const char *packet, unsigned length)
{
    uint32_t n, k;
    if (*packet == 'M') {
        plain_take(self, packet, length);
        return;
    }
    memcpy(&n, packet + 12, 4);
    memcpy(&k, packet + 16, 4);
    unsigned keys_end = COLUMNS + 4 * (k + n) + (k > 1 ? n : 0) + k * KEY;
    if (keys_end + n * size != length) {
        self->received += n;
        self->disorder++;
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        check(self, packet + keys_end + i * size);
}

struct form {
    void (*prepare)(struct publisher *);
    int (*fill)(struct publisher *);
    void (*take)(struct receiver *, const char *, unsigned);
};

static const struct form PLAIN = {plain_prepare, plain_fill, plain_take};
static const struct form BATCHED = {batched_prepare, batched_fill, batched_take};
static const struct form *form = &PLAIN;

/* -- packets -- */

static struct publisher *outgoing;
static struct receiver *incoming;
static double last_message;

static void *publish(void *argument)
{
    struct publisher *self = argument;
    for (int n; (n = form->fill(self));) {
        for (int sent = 0; sent < n;) {
            int went = sendmmsg(self->fd, self->headers + sent, n - sent, MSG_NOSIGNAL);
            if (went <= 0)
                die("a publisher cannot send: %s", strerror(errno));
            sent += went;
        }
    }
    barrier(self->fd);
    return NULL;
}

static void *receive(void *argument)
{
    (void)argument;
    static struct mmsghdr headers[BATCH];
    static struct iovec parts[BATCH];
    size_t slot = batch ? BATCH_AREA + 3 * 64 : HEAD + size > 4096 ? HEAD + size : 4096;
    char *area = malloc(BATCH * slot);
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){area + i * slot, slot};
        headers[i].msg_hdr.msg_iov = &parts[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    int poll = epoll_create1(0);
    for (long i = 0; i < receivers; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &incoming[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, incoming[i].fd, &event);
    }
    for (long left = receivers; left;) {
        struct epoll_event ready[64];
        int count = epoll_wait(poll, ready, 64, 30000);
        if (!count)
            die("nothing has come for 30 seconds");
        for (int e = 0; e < count; e++) {
            struct receiver *self = ready[e].data.ptr;
            int n = recvmmsg(self->fd, headers, BATCH, MSG_DONTWAIT, NULL);
            if (n < 0 && errno != EAGAIN && errno != EINTR)
                die("a receiver cannot receive: %s", strerror(errno));
            uint64_t before = self->received;
            for (int i = 0; i < n; i++) {
                const char *packet = parts[i].iov_base;
                if (!headers[i].msg_len)
                    die("the daemon closed a receiver's connection");
                if (*packet != 'C' || !strncmp(packet, "CMSG batch", 10))
                    form->take(self, packet, headers[i].msg_len);
                else if (!strncmp(packet, WHOAMI, sizeof WHOAMI - 1)) {
                    self->done = 1;
                    left--;
                }
            }
            if (self->received != before)
                last_message = now();
        }
    }
    close(poll);
    free(area);
    return NULL;
}

static volatile int churning;
static long churned;

/* Subscribe to a new pattern, and give the one before up, so many times a second. */
static void *change(void *argument)
{
    int fd = *(int *)argument;
    double began = now();
    while (churning) {
        while (churning && churned < (now() - began) * churn) {
            if (churned)
                say(fd, "UNSUB churn/%ld/*", churned - 1);
            say(fd, "SUB churn/%ld/*", churned++);
        }
        usleep(500);
    }
    return NULL;
}

static void run_packets(long messages, int print)
{
    long each = messages / publishers;
    int churner = -1;
    pthread_t reader, changer;
    for (long i = 0; i < receivers; i++) {
        struct receiver *self = &incoming[i];
        self->done = 0;
        self->received = self->disorder = 0;
    }
    for (long i = 0; i < publishers; i++)
        outgoing[i].end = outgoing[i].next + each;
    if (churn && print) {
        churner = dial(address);
        churning = 1;
        pthread_create(&changer, NULL, change, &churner);
    }
    double used = cpu(), began = now();
    last_message = began;
    pthread_create(&reader, NULL, receive, NULL);
    for (long i = 0; i < publishers; i++)
        pthread_create(&outgoing[i].thread, NULL, publish, &outgoing[i]);
    for (long i = 0; i < publishers; i++)
        pthread_join(outgoing[i].thread, NULL);
    /* Across a relay, the answer to the receivers' question must not overtake: the publishers' hub passed all on, and
     * what is still on its way is waited for, for a while. */
    if (receivers_address)
        for (double wait = now() + patience, seen = 0; now() < wait; usleep(200)) {
            if (last_message != seen)
                wait = now() + patience;
            seen = last_message;
            uint64_t got = 0;
            for (long i = 0; i < receivers; i++)
                got += ((volatile struct receiver *)incoming)[i].received;
            if (got >= (uint64_t)(each * publishers * (dealt ? 1 : receivers)))
                break;
        }
    for (long i = 0; i < receivers; i++)
        say(incoming[i].fd, WHOAMI);
    pthread_join(reader, NULL);
    used = cpu() - used;
    if (churner >= 0) {
        churning = 0;
        pthread_join(changer, NULL);
        close(churner);
    }
    uint64_t got = 0, disorder = 0;
    for (long i = 0; i < receivers; i++) {
        got += incoming[i].received;
        disorder += incoming[i].disorder;
    }
    long sent = each * publishers, due = sent * (dealt ? 1 : receivers);
    if (print)
        printf("{\"messages\": %ld, \"deliveries\": %ld, \"received\": %llu, \"lost\": %ld, \"disorder\": %llu, "
               "\"seconds\": %.6f, \"cpu\": %.9f, \"churned\": %ld}\n",
               sent, due, (unsigned long long)got, due - (long)got, (unsigned long long)disorder,
               last_message - began, used, churned);
}

static void packets(void)
{
    if (publishers > 64 || receivers > MOST)
        die("at most 64 publishers and %d receivers", MOST);
    outgoing = calloc(publishers, sizeof *outgoing);
    incoming = calloc(receivers, sizeof *incoming);
    nonce = (uint32_t)(now() * 1e6) ^ (uint32_t)getpid();
    for (long i = 0; i < receivers + stopped; i++) {
        int fd = dial(receivers_address ? receivers_address : address);
        if (i < receivers && strcmp(mode, "default"))
            say(fd, "CMSG blocking/soft/%s", mode);
        if (batch)
            say(fd, "CMSG batch/on");
        if (dealt)
            say(fd, "SUB bench/%07x/%08lx", 0, i);
        else
            say(fd, "SUB bench/");
        barrier(fd);
        if (i < receivers)
            incoming[i].fd = fd;
    }
    for (long i = 0; i < publishers; i++) {
        outgoing[i].fd = dial(address);
        outgoing[i].number = i;
        form->prepare(&outgoing[i]);
        barrier(outgoing[i].fd);
    }
    if (receivers_address)
        usleep(100000); /* the relay may still be told what is wanted */
    if (warm)
        run_packets(warm, 0);
    run_packets(total, 1);
}

static int by_size(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void print_trips(double *times, double used, double seconds)
{
    qsort(times, total, sizeof *times, by_size);
    printf("{\"messages\": %ld, \"deliveries\": %ld, \"received\": %ld, \"lost\": 0, \"disorder\": 0, "
           "\"seconds\": %.6f, \"cpu\": %.9f, \"median\": %.9f, \"p99\": %.9f, \"churned\": 0}\n",
           2 * total, 2 * total, 2 * total, seconds, used, times[total / 2], times[total * 99 / 100]);
}

static void packet_trips(void)
{
    int here = dial(address), there = dial(address);
    say(here, "SUB trip/back");
    say(there, "SUB trip/there");
    barrier(here);
    barrier(there);
    char *packet = malloc(HEAD + size + 4096);
    double *times = calloc(total, sizeof *times), began = 0, used = 0;
    memset(packet, 'x', HEAD + size);
    for (long i = -warm; i < total; i++) {
        double start = now();
        if (i == 0) {
            used = cpu();
            began = start = now();
        }
        strcpy(packet, "MSG trip/there");
        for (int leg = 0; leg < 2; leg++) {
            int from = leg ? there : here, to = leg ? here : there;
            if (leg)
                strcpy(packet, "MSG trip/back");
            size_t length = strlen(packet) + 1 + size;
            if (send(from, packet, length, MSG_NOSIGNAL) < 0 || recv(to, packet, HEAD + size + 4096, 0) != (long)length)
                die("a message did not come: %s", strerror(errno));
        }
        if (i >= 0)
            times[i] = now() - start;
    }
    print_trips(times, cpu() - used, now() - began);
}

/* -- byte streams -- */

static char *frame;
static size_t frame_bytes;

static int parse_fds(const char *text, int *fds)
{
    int n = 0;
    for (char *end; *text && n < MOST; text = *end ? end + 1 : end) {
        fds[n++] = strtol(text, &end, 10);
        fcntl(fds[n - 1], F_SETFL, fcntl(fds[n - 1], F_GETFL) & ~O_NONBLOCK);
    }
    return n;
}

static void read_frame(void)
{
    struct stat found;
    int fd = open(frame_file ? frame_file : "", O_RDONLY);
    if (fd < 0 || fstat(fd, &found))
        die("%s: %s", frame_file ? frame_file : "-f", strerror(errno));
    frame_bytes = found.st_size;
    frame = malloc(frame_bytes);
    if (read(fd, frame, frame_bytes) != (ssize_t)frame_bytes)
        die("%s: too short", frame_file);
    close(fd);
}

static void write_all(int fd, const char *data, size_t length)
{
    while (length) {
        ssize_t went = send(fd, data, length, MSG_NOSIGNAL);
        if (went <= 0)
            die("the broker takes no more: %s", strerror(errno));
        data += went;
        length -= went;
    }
}

static void *write_frames(void *argument)
{
    struct publisher *self = argument;
    size_t some = CHUNK / frame_bytes ? CHUNK / frame_bytes : 1;
    for (uint64_t left = self->end; left;) {
        size_t now_ = left < some ? left : some;
        write_all(self->fd, self->data, now_ * frame_bytes);
        left -= now_;
        /* What the broker answers to its publishers is not wanted, but must not fill the pipe. */
        char answers[CHUNK];
        while (recv(self->fd, answers, sizeof answers, MSG_DONTWAIT) > 0)
            ;
    }
    return NULL;
}

static void run_stream(long messages, int print)
{
    long each = messages / publishers;
    uint64_t due = (uint64_t)each * publishers * unit;
    static char area[4 * CHUNK];
    int poll = epoll_create1(0);
    for (long i = 0; i < receivers; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &incoming[i]};
        incoming[i].bytes = 0;
        epoll_ctl(poll, EPOLL_CTL_ADD, incoming[i].fd, &event);
    }
    double used = cpu(), began = now();
    last_message = began;
    for (long i = 0; i < publishers; i++) {
        outgoing[i].end = each;
        pthread_create(&outgoing[i].thread, NULL, write_frames, &outgoing[i]);
    }
    for (long left = receivers; left;) {
        struct epoll_event ready[64];
        int count = epoll_wait(poll, ready, 64, patience * 1000);
        if (!count)
            break; /* the rest is lost */
        for (int e = 0; e < count; e++) {
            struct receiver *self = ready[e].data.ptr;
            ssize_t length = recv(self->fd, area, sizeof area, MSG_DONTWAIT);
            if (length < 0 && (errno == EAGAIN || errno == EINTR))
                continue;
            if (length <= 0) {
                left--;
                epoll_ctl(poll, EPOLL_CTL_DEL, self->fd, NULL);
                continue;
            }
            self->bytes += length;
            if (self->bytes >= due)
                left--;
        }
        last_message = now();
    }
    double seconds = last_message - began;
    used = cpu() - used;
    for (long i = 0; i < publishers; i++)
        pthread_join(outgoing[i].thread, NULL);
    close(poll);
    uint64_t got = 0, disorder = 0;
    for (long i = 0; i < receivers; i++) {
        got += incoming[i].bytes / unit;
        disorder += incoming[i].bytes % unit != 0;
    }
    long sent = each * publishers, wanted = sent * receivers;
    if (print)
        printf("{\"messages\": %ld, \"deliveries\": %ld, \"received\": %llu, \"lost\": %ld, \"disorder\": %llu, "
               "\"seconds\": %.6f, \"cpu\": %.9f, \"churned\": 0}\n",
               sent, wanted, (unsigned long long)got, wanted - (long)got, (unsigned long long)disorder, seconds, used);
}

static void streams(int trips)
{
    int in[MOST], out[MOST];
    receivers = parse_fds(in_fds, in);
    publishers = parse_fds(out_fds, out);
    if (!receivers || !publishers || !unit)
        die("-i, -o, -f and -z are needed");
    read_frame();
    if (trips) {
        double *times = calloc(total, sizeof *times), began = 0, used = 0;
        char *area = malloc(unit);
        for (long i = -warm; i < total; i++) {
            double start = now();
            if (i == 0) {
                used = cpu();
                began = start = now();
            }
            for (int leg = 0; leg < 2; leg++) {
                write_all(out[0], frame, frame_bytes);
                if (recv(in[0], area, unit, MSG_WAITALL) != unit)
                    die("a message did not come: %s", strerror(errno));
            }
            if (i >= 0)
                times[i] = now() - start;
        }
        print_trips(times, cpu() - used, now() - began);
        return;
    }
    outgoing = calloc(publishers, sizeof *outgoing);
    incoming = calloc(receivers, sizeof *incoming);
    size_t some = CHUNK / frame_bytes ? CHUNK / frame_bytes : 1;
    char *frames = malloc(some * frame_bytes);
    for (size_t i = 0; i < some; i++)
        memcpy(frames + i * frame_bytes, frame, frame_bytes);
    for (long i = 0; i < receivers; i++)
        incoming[i].fd = in[i];
    for (long i = 0; i < publishers; i++) {
        outgoing[i].fd = out[i];
        outgoing[i].data = frames;
    }
    if (warm)
        run_stream(warm, 0);
    run_stream(total, 1);
}

/* -- */

static int is(const char *a, const char *b)
{
    return !strcmp(a, b);
}

int main(int argc, char **argv)
{
    const char *job = argc > 1 ? argv[1] : "";
    optind = 2;
    for (int option; (option = getopt(argc, argv, "a:b:n:w:s:p:r:k:dm:x:B:c:P:i:o:f:z:t:")) != -1;)
        switch (option) {
        case 'a': address = optarg; break;
        case 'b': receivers_address = optarg; break;
        case 'n': total = atol(optarg); break;
        case 'w': warm = atol(optarg); break;
        case 's': size = atol(optarg); break;
        case 'p': publishers = atol(optarg); break;
        case 'r': receivers = atol(optarg); break;
        case 'k': keys = atol(optarg); break;
        case 'd': dealt = 1; break;
        case 'm': mode = optarg; break;
        case 'x': stopped = atol(optarg); break;
        case 'B': batch = atol(optarg), form = &BATCHED; break;
        case 'c': churn = atol(optarg); break;
        case 'P': pids = optarg; break;
        case 'i': in_fds = optarg; break;
        case 'o': out_fds = optarg; break;
        case 'f': frame_file = optarg; break;
        case 'z': unit = atol(optarg); break;
        case 't': patience = atof(optarg); break;
        default: return 2;
        }
    if (total < 1 || size < 0 || publishers < 1 || receivers < 1)
        die("counts are positive");
    for (const char *text = pids; text && *text;) {
        char *end;
        watch(strtol(text, &end, 10));
        text = *end ? end + 1 : end;
    }
    int packets_job = is(job, "packets") || is(job, "trip");
    if (packets_job && !address)
        die("-a is needed");
    if (packets_job && !pids) {
        struct ucred peer;
        socklen_t length = sizeof peer;
        int fd = dial(address);
        if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
            watch(peer.pid);
        close(fd);
    }
    if (is(job, "packets"))
        packets();
    else if (is(job, "trip"))
        packet_trips();
    else if (is(job, "stream") || is(job, "streamtrip"))
        streams(is(job, "streamtrip"));
    else
        die("usage: load packets|trip|stream|streamtrip [options]");
    return 0;
}
