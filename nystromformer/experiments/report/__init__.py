"""The report: runs as one page, tables and figures."""
