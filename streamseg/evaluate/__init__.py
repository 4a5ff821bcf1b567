"""Accuracy, speed and steadiness, and the tables of the paper."""
