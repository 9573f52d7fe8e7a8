"""The data source ``sbus``: reads journals, in batches and streams, and publishes rows as messages on a bus.

Spark finds the class by itself, through the module ``pyspark_sbus``.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..errors import UsageError
from ..journal.read.schema import SCHEMA
from .reader import JournalReader, Options
from .sink import BusStreamWriter, BusWriter, Target
from .stream import JournalStreamReader


class JournalSource(DataSource):
    """``spark.read.format("sbus").load(directory)``, and ``readStream``, ``write`` and ``writeStream`` likewise."""

    @classmethod
    def name(cls) -> str:
        """The argument of ``format(...)``."""
        return "sbus"

    def schema(self) -> StructType:
        """All columns. ``.schema(...)`` chooses some; the others are not decoded."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the rows that are recorded now."""
        return JournalReader(Options.read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader that goes on with rows that are recorded later."""
        return JournalStreamReader(Options.read(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that publishes a frame. Raises :exc:`~sbuslib.errors.UsageError` for the mode ``overwrite``."""
        if overwrite:
            raise UsageError("published messages cannot be overwritten: say mode('append')")
        return BusWriter(Target.read(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer that publishes a stream."""
        return BusStreamWriter(Target.read(self.options, schema))
