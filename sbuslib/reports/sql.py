"""The rows that a report counts, in DuckDB or in Spark. The SQL of reports runs unchanged in both.

So it uses only features with the same meaning in both:

* Times are whole numbers of nanoseconds. Both round ``%`` towards 0; neither has the other's functions of time.
* ``CAST(SUM(x) AS BIGINT)``, since DuckDB sums into 128 bits.
* ``GROUPING(column)`` distinguishes the sets of ``GROUPING SETS``.
* Order is made in Python: Spark puts nulls first, and ties have no order in either.
* No function takes keys apart: text functions of Spark spoil bytes that are not UTF-8, and DuckDB escapes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from ..errors import JournalError, StateError
from ..journal.format.decoding import OnCorrupt
from ..kernel.defaults import temporary_folder
from ..reading import read

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation
    from pyspark.sql import DataFrame, SparkSession

Place: TypeAlias = "str | os.PathLike[str]"

COLUMNS = (
    "time_ns", "journal", "sequence", "hub", "kind", "key", "size", "sender", "gid", "uid", "pid", "lost", "cause",
)  # fmt: skip
"""Columns that reports read. Payloads are not read."""


class Recorded(Protocol):
    """Rows with the columns :data:`COLUMNS`, in the ``engine`` of this name."""

    engine: str

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a ``SELECT`` from the table ``sbus_recorded``. Binary values are ``bytes``."""
        ...


class InDuckDB:
    """Rows in DuckDB."""

    engine = "DuckDB"

    def __init__(self, rows: DuckDBPyRelation) -> None:
        self._rows = rows
        """The relation that SQL calls ``sbus_recorded``."""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """See :class:`Recorded`. Raises :exc:`~sbuslib.errors.JournalError` where a file cannot be read."""
        import duckdb

        from ..journal.read.readers import journal_error  # only here, as it needs Arrow

        try:
            answer = self._rows.query("sbus_recorded", sql)
            assert answer is not None, "it is a SELECT"
            return answer.fetchall()
        except duckdb.Error as error:
            raise journal_error(error) or JournalError(str(error).splitlines()[0]) from None


class InSpark:
    """Rows in Spark."""

    engine = "Spark"

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows
        """The frame that SQL calls ``sbus_recorded``."""

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """See :class:`Recorded`. Raises errors of Spark."""
        self._rows.createOrReplaceTempView("sbus_recorded")
        answer = self._rows.sparkSession.sql(sql).toArrow()
        return [*zip(*(column.to_pylist() for column in answer.columns), strict=True)]


class Choice(NamedTuple):
    """Selection of rows: those that ``hub`` recorded, from ``start_ns`` on and before ``end_ns``; ``None``: all."""

    hub: str | None = None
    start_ns: int | None = None
    end_ns: int | None = None


EVERYTHING = Choice()


def require() -> None:
    """Raise :exc:`~sbuslib.errors.StateError`, with the command to install it, if DuckDB or Arrow is missing."""
    for name in ("duckdb", "pyarrow"):
        if find_spec(name) is None:
            raise StateError(f"{name} is missing: pip install 'sbuslib[report]'")


@contextmanager
def in_duckdb(place: Place, choice: Choice = EVERYTHING, *, on_corrupt: OnCorrupt = "error") -> Iterator[InDuckDB]:
    """Open the rows of a lake or journal in a DuckDB of its own. Raises as :func:`sbuslib.read`."""
    require()
    import duckdb

    # DuckDB spills to this folder, not below the user's working directory. Nothing is downloaded.
    with (
        TemporaryDirectory(prefix="sbus-report-", dir=temporary_folder()) as folder,
        duckdb.connect(config={"temp_directory": folder, "autoinstall_known_extensions": "false"}) as base,
    ):
        rows = read(
            place,
            "duckdb",
            start=choice.start_ns,
            end=choice.end_ns,
            columns=COLUMNS,
            on_corrupt=on_corrupt,
            connection=base,
        )
        if choice.hub is not None:
            rows = rows.filter(duckdb.ColumnExpression("hub") == duckdb.ConstantExpression(choice.hub))
        yield InDuckDB(rows)


def in_spark(session: SparkSession, place: Place, choice: Choice = EVERYTHING) -> InSpark:
    """The rows of a lake or journal in Spark. Raises as :func:`sbuslib.read`."""
    rows = read(place, "spark", start=choice.start_ns, end=choice.end_ns, columns=COLUMNS, session=session)
    return InSpark(rows if choice.hub is None else rows.where(rows.hub == choice.hub))


def default_engine(place: Place) -> Literal["duckdb", "spark"]:
    """DuckDB for a place on this machine, unless Spark alone is installed; else Spark."""
    is_spark = "://" in os.fspath(place) or (find_spec("duckdb") is None and find_spec("pyspark") is not None)
    return "spark" if is_spark else "duckdb"
