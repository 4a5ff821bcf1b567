"""Data sets of labelled images and videos: layouts, label files, shards and augmentation."""
