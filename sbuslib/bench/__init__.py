"""Measurements of a hub, beside a forwarder that does not think and beside brokers that are installed here.

What belongs here is what ``sbus bench`` and ``benchmarks/report.py`` share: the load, in C and compiled on the spot
(``load.c``), or in Python where there is no compiler; the limit, a forwarder that makes the same system calls
(``forwarder.c``); the scenarios; drivers of other brokers; the arithmetic and the pages. Figures are ratios within one
run wherever they are compared, and nothing here decides whether a figure is good.
"""
