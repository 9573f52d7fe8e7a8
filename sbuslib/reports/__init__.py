"""Reports about what was recorded: tables, and pages of HTML that show them.

What they count is SQL, written once, that runs unchanged on DuckDB and on Spark (:mod:`.sql`); what is told by key is
counted in Python, over the distinct keys (:mod:`.by_key`). Nothing here loads gevent.
"""
