"""Runs as one page, tables and figures."""
