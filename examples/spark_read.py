"""A journal in Spark: the busiest keys, messages by minute, and what is missing.

Try: python examples/spark_read.py /var/lib/sbus/journal
It needs Java 17 and pip install 'sbuslib[spark]'. A journal is made by: sbus journal record /var/lib/sbus/journal
"""

import sys

from sbuslib.errors import StateError
from sbuslib.spark import session


def main(journal: str) -> None:
    spark = session()
    # Of every row these columns alone are decoded.
    source = spark.read.format("sbus").schema("time TIMESTAMP, kind STRING, key BINARY, size BIGINT, lost BIGINT")
    source.load(journal).createOrReplaceTempView("journal")

    print("the busiest keys:")
    busiest = "SELECT string(key), count(*) AS messages, sum(size) AS bytes FROM journal WHERE kind = 'message'"
    for row in spark.sql(f"{busiest} GROUP BY key ORDER BY messages DESC, key LIMIT 10").collect():
        print(f"  {row.key} {row.messages} messages, {row.bytes} bytes")

    print("messages by minute:")
    minutes = "SELECT date_format(time, 'HH:mm') AS minute, count(*) AS messages FROM journal WHERE kind = 'message'"
    for row in spark.sql(f"{minutes} GROUP BY minute ORDER BY minute").collect():
        print(f"  {row.minute} {row.messages}")

    gaps = "SELECT coalesce(sum(lost), 0) AS known, count_if(lost IS NULL) AS unknown FROM journal WHERE kind = 'gap'"
    (lost,) = spark.sql(gaps).collect()
    print(f"missing: {lost.known}" + f", and {lost.unknown} times nobody knows how many" * (lost.unknown > 0))


if __name__ == "__main__":
    try:
        main(sys.argv[1] if sys.argv[1:] else "journal")
    except StateError as error:
        sys.exit(str(error))
