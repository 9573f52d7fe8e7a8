/* The load on other brokers, over byte streams that are open already. */
#ifndef SBUS_BENCH_STREAMS_H
#define SBUS_BENCH_STREAMS_H
#include "messages.h"

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
        /* Drop the broker's answers to publishers, so that they do not fill the pipe. */
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

#endif
