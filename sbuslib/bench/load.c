/* Loads a daemon, and prints the result as a JSON object on standard output.
 *
 *     load packets -a ADDRESS [options]    messages from publishers to receivers, by the sbus protocol
 *     load trip -a ADDRESS [options]       one message there and one back, again and again
 *     load stream -i FDS -o FDS [options]  messages over byte streams that are open already, for other brokers
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
 *     -i FDS, -o FDS  descriptors to receive from and to send to       -f FILE  the bytes to send for each message
 *     -z BYTES    bytes received for each message                      -t SECONDS  of silence until the rest is lost
 *
 * Each publisher has a thread and sends as fast as it can, 64 packets a call. One thread reads for all receivers, 64
 * packets a call. Every payload begins with the number of its publisher and a sequence number, which receivers check.
 * At the end each connection asks whoami. The answer comes after all messages, so messages that have not come by then
 * are lost. CPU time is the scheduler's account, in nanoseconds, of all threads of the processes.
 */
#define _GNU_SOURCE
#include "streams.h"

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

/* Subscribe to a new pattern and unsubscribe from the one before, so many times a second. */
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
    /* Messages may still be crossing the relay. Wait for them before asking the receivers' hub, until none comes for a
     * while, or its answer would come before them. */
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
        usleep(100000); /* the relay may still learn the patterns */
    if (warm)
        run_packets(warm, 0);
    run_packets(total, 1);
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
