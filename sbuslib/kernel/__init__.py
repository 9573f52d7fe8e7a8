"""What Linux does for the bus: sockets and their peers, many packets with one call, users. No event loop."""
