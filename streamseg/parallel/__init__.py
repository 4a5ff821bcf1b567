"""Threads, processes and machines that work together, and signals that stop them."""
