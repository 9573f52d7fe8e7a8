/* A client in C: nothing is needed but a socket. Each packet is one message.
 *
 * Try: sbus hub -a /tmp/bus
 *      and in another terminal: cc -o /tmp/c_client examples/c_client.c && /tmp/c_client /tmp/bus room/ 2
 *      and in a third: sbus pub -a /tmp/bus room/1 warm; sbus pub -a /tmp/bus room/2 cold
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static char packet[409600 + 1]; /* the longest there is, and a NUL */

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (argc != 4)
        errx(2, "usage: %s PATH PATTERN COUNT", argv[0]);
    if (strlen(argv[1]) >= sizeof(address.sun_path))
        errx(2, "%s: too long", argv[1]);
    strcpy(address.sun_path, argv[1]);

    int hub = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (hub < 0 || connect(hub, (struct sockaddr *)&address, sizeof(address)))
        err(1, "%s", argv[1]);

    /* SUB <pattern>; the hub answers CMSG in order, so its answer tells that the subscription is in force. */
    int size = snprintf(packet, sizeof(packet), "SUB %s", argv[2]);
    if (size >= (int)sizeof(packet) || send(hub, packet, size, MSG_NOSIGNAL) < 0)
        err(1, "SUB %s", argv[2]);
    if (send(hub, "CMSG !/cred/whoami", 18, MSG_NOSIGNAL) < 0)
        err(1, "CMSG");

    for (int left = atoi(argv[3]); left > 0;) {
        ssize_t length = recv(hub, packet, sizeof(packet) - 1, 0);
        if (length < 0)
            err(1, "recv");
        if (length == 0)
            errx(1, "the hub closed the connection");
        packet[length] = '\0';
        char *payload = packet + strlen(packet) + 1; /* <verb> <key> NUL <payload> */
        if (!strncmp(packet, "CMSG ", 5))
            printf("subscribed as %s\n", payload);
        else if (!strncmp(packet, "MSG ", 4) && left--)
            printf("%s: %s\n", packet + 4, payload);
        fflush(stdout);
    }
    return 0;
}
