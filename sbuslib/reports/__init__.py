"""Reports of recordings: tables, and pages of HTML that show them.

The SQL of the counts is written once and runs unchanged on DuckDB and on Spark (:mod:`.sql`); counts by key are made in
Python, over the distinct keys (:mod:`.by_key`). Nothing here loads gevent.
"""
