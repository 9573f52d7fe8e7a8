"""One client's inside."""
