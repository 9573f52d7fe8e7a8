/* The limit for any hub: passes packets on without looking at them.
 *
 *     forwarder ADDRESS [deal]
 *
 * It listens as a hub does, and makes the same system calls: one epoll_wait(2), one recvmmsg(2) of up to 64 packets
 * from a readable connection, and one sendmmsg(2) of all of them to each connection that ever sent a SUB, except the
 * sender. With "deal", each packet goes to only one of these, in turn. It checks the first byte of the first and the
 * last packet of those received together, to tell messages from commands. It answers a CMSG with the same packet, so
 * that a client can wait until its messages were passed on. When a receiver has no room, it waits, as a hub does for a
 * receiver in block mode.
 *
 * It prints a line when it listens, and exits when its standard input is closed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BATCH = 64, PACKET = 409600 + 4096, STRIDE = 417792 + 3 * 64, MOST = 65536, SEND_BUFFER = 425984 };

static struct mmsghdr in[BATCH], out[BATCH];
static struct iovec in_parts[BATCH], out_parts[BATCH];
static int receivers[MOST], count, deal;
static unsigned long dealt;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void forget(int fd)
{
    for (int i = 0; i < count; i++)
        if (receivers[i] == fd)
            receivers[i] = receivers[--count];
    close(fd);
}

/* Send packets in order, waiting for room. Packets for a receiver that has gone are dropped. */
static void pass_on(int fd, struct mmsghdr *packets, int n)
{
    while (n > 0) {
        int sent = sendmmsg(fd, packets, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0) {
            packets += sent;
            n -= sent;
        } else if (errno == EAGAIN) {
            struct pollfd one = {fd, POLLOUT, 0};
            poll(&one, 1, -1);
        } else if (errno != EINTR) {
            return;
        }
    }
}

static void answer(int fd, struct mmsghdr *packet)
{
    char verb = *(char *)packet->msg_hdr.msg_iov->iov_base;
    if (verb == 'S' && count < MOST)
        receivers[count++] = fd;
    if (verb == 'C')
        pass_on(fd, packet, 1);
}

static int is_message(int slot)
{
    return *(char *)in_parts[slot].iov_base == 'M';
}

static void serve(int fd)
{
    for (int i = 0; i < BATCH; i++)
        in_parts[i].iov_len = PACKET;
    int n = recvmmsg(fd, in, BATCH, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)
            return;
        die("recvmmsg");
    }
    int end = n;
    for (int i = 0; i < n; i++) {
        in_parts[i].iov_len = in[i].msg_len;
        if (!in[i].msg_len && i < end)
            end = i; /* the end of the connection: every further slot is empty, too */
    }
    int first = 0, last = end;
    while (first < last && !is_message(first))
        answer(fd, &in[first++]);
    while (last > first && !is_message(last - 1))
        last--;
    if (deal && count) {
        for (int r = 0; r < count; r++) {
            int some = 0;
            for (int i = first + r; i < last; i += count)
                out_parts[some++] = in_parts[i];
            pass_on(receivers[(dealt + r) % count], out, some);
        }
        dealt += last - first;
    } else {
        for (int r = 0; r < count; r++)
            if (receivers[r] != fd)
                pass_on(receivers[r], in + first, last - first);
    }
    for (int i = last; i < end; i++)
        answer(fd, &in[i]);
    if (end < n)
        forget(fd);
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc < 2 || strlen(argv[1]) >= sizeof address.sun_path) {
        fprintf(stderr, "usage: forwarder ADDRESS [deal]\n");
        return 2;
    }
    strcpy(address.sun_path, argv[1]);
    deal = argc > 2;
    char *area = mmap(NULL, (size_t)BATCH * STRIDE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED)
        die("mmap");
    madvise(area, (size_t)BATCH * STRIDE, MADV_NOHUGEPAGE);
    for (int i = 0; i < BATCH; i++) {
        in_parts[i].iov_base = area + (size_t)i * STRIDE;
        in[i].msg_hdr.msg_iov = &in_parts[i];
        out[i].msg_hdr.msg_iov = &out_parts[i];
        in[i].msg_hdr.msg_iovlen = out[i].msg_hdr.msg_iovlen = 1;
    }
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096))
        die(argv[1]);
    int loop = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = STDIN_FILENO;
    epoll_ctl(loop, EPOLL_CTL_ADD, STDIN_FILENO, &event);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event ready[64];
        int n = epoll_wait(loop, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == STDIN_FILENO) {
                unlink(argv[1]);
                return 0;
            }
            if (fd != listener) {
                serve(fd);
                continue;
            }
            int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (client < 0)
                continue;
            int size = SEND_BUFFER;
            setsockopt(client, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
            event = (struct epoll_event){.events = EPOLLIN, .data.fd = client};
            epoll_ctl(loop, EPOLL_CTL_ADD, client, &event);
        }
    }
}
