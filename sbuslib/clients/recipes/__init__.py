"""Patterns of use on top of the bus: each is written once, without input or output, for all kinds of client."""
