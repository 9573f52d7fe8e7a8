"""Journals as Parquet: sealing segments, and reading sealed files and live tails. No Spark, no event loop, no bus."""
