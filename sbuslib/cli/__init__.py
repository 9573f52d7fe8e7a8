"""The programs: ``sbus`` (:mod:`~sbuslib.cli.main`) and ``sbusd`` (:mod:`~sbuslib.cli.daemon`).

This folder holds the surface for people and scripts: arguments, output, exit statuses. Each program imports a
module at its first use, so that all start quickly.
"""
