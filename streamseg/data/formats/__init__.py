"""Exports of annotation tools: one module for each tool, and their conversion to the layout `folder`."""
