"""Video: the state of a stream, and the pipeline from source to output."""
