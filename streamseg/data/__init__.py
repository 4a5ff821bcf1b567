"""Data sets of labelled pictures and videos."""
