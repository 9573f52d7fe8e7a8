"""Monitoring of a bus from outside: rates of its counts, its tree of hubs, and diagnosis of problems."""
