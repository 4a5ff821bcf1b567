"""Export to other runtimes, and archives of videos on a Ray cluster."""
