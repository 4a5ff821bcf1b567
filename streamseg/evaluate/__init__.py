"""Evaluate networks: accuracy on images and video, speed, the paper's tables; and check data sets."""
