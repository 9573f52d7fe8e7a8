/* How publishers make packets of messages, and how receivers count and check them. */
#ifndef SBUS_BENCH_MESSAGES_H
#define SBUS_BENCH_MESSAGES_H
#include "common.h"

static uint32_t nonce; /* makes keys differ from those of earlier runs */

struct publisher {
    pthread_t thread;
    int fd, number;
    uint64_t next, end; /* sequence numbers */
    char *data;
    long most, kinds; /* messages and keys of a batch */
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

/* Count a payload, and check that it follows the previous one of the same publisher. */
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

/* One message a packet: make the next packets, and return how many there are. */
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

/* Count the messages in a packet. */
static void plain_take(struct receiver *self, const char *packet, unsigned length)
{
    if (length == HEAD + size)
        check(self, packet + HEAD);
    else {
        self->received++;
        self->disorder++;
    }
}

/* Many messages a packet, see batch/on in docs/protocol.md: 32-bit numbers, little-endian as on this machine;
 * the length of each key, the length of each payload, the number of each message's key where there are several, the
 * keys, the payloads. */
enum { COLUMNS = 20, BATCH_KEYS = 256, BATCH_MESSAGES = 4096, BATCH_AREA = 417792 };

static const char BATCH_HEAD[12] = "CMSG batch\0\1";

/* Make a batch of n messages with equal keys and payloads, and return its length. The caller writes what differs. */
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
    /* The keys of a batch are those of its first messages, so that keys in turn are all used. */
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

/* A run: its connections, and when the last message came. */

static struct publisher *outgoing;
static struct receiver *incoming;
static double last_message;

#endif
