"""Video methods: the ways to segment video that the FANet paper compares itself with, one a file, on one backbone.

Each takes frame after frame by `step(image, state) -> logits, state`; scheme.py has the interface.
"""
