"""Exported files, and archives of videos."""
