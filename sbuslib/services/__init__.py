"""Services: each is a process of its own, a plain client of a hub, and has a command."""
