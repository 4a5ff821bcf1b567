"""Engines label frames: the network itself, its fast forms, and exported files."""
