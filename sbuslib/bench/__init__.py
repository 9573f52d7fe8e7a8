"""Measurements of this bus alone, beside a forwarder that does not think.

What belongs here is what ``sbus bench`` needs: the load, in C and compiled on the spot (``load.c``), or in Python where
there is no compiler; the limit, a forwarder that makes the same system calls (``forwarder.c``); the scenarios; the
arithmetic and the tables. What knows other brokers is in ``benchmarks/comparison``, beside the package.
Figures are ratios within one run wherever they are compared, and nothing here decides whether a figure is good.
"""
