"""How Spark finds the data source ``sbus``: it imports every top-level module whose name starts with ``pyspark_``."""

from sbuslib.spark.source import JournalSource as DefaultSource

__all__ = ["DefaultSource"]
