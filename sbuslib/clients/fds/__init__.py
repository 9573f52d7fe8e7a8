"""Descriptor stores: how a process hands out memory, files and descriptors of its own to those who learned of them from
the bus.
"""
