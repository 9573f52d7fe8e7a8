"""The programs: ``sbus`` (:mod:`~sbuslib.cli.main`) and ``sbusd`` (:mod:`~sbuslib.cli.daemon`).

What belongs here is what a person or a script meets: arguments, output, exit statuses. Each program imports
what it uses when it uses it, so that each starts quickly.
"""
