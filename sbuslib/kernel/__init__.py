"""Interface to Linux: sockets and their peers, many packets with one call, users. No event loop."""
