"""One hub's inside."""
