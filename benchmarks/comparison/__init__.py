"""A hub beside other brokers: their drivers, their Python clients, and the report of all.

What belongs here is what knows another broker. The load, the scenarios, the limit and the arithmetic are
:mod:`sbuslib.bench`. ``benchmarks/report.py`` runs it.
"""
