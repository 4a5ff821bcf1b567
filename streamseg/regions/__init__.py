"""Connected regions of labels, and zones with their events."""
